"""`genkern replay`: strategies judged on recorded spaces, by the command."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command import run_here
from recorded_runs import BEST, OTHER, PROBLEM, journal

from genkern.recorded.from_journal import run_of
from genkern.recorded.parquet import add

# Asks for the last unit of the space that can run, and for no more.
OWN = """
from genkern.search.strategy import Strategy, units_of


class Last(Strategy):
    def __init__(self, task):
        self.left = units_of(task.configs)[5:6]

    def ask(self, n):
        asked, self.left = self.left, []
        return asked

    def expected_loss(self):
        return 0.25


strategy = Last
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with the record of one run over two sizes."""
    add(run_of(journal(tmp_path / "r.journal", PROBLEM, OTHER)), str(tmp_path / "tables" / "r.parquet"))
    return tmp_path / "tables"


def test_strategies_are_compared(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table for each, with what it compiled, measured, took and lost; the same as CSV."""
    (tmp_path / "last.py").write_text(OWN)
    own = ("--search", tmp_path / "last.py", "-o", tmp_path / "out.csv")
    done = run_here(capsys, "replay", tables, "--search", "exhaustive", *own)
    assert done.status == 0, done
    first, second, notes = done.out.split("\n\n")
    lines = [line.split() for line in first.splitlines()]
    assert lines[0] == ["exhaustive,", "16", "compiles", "at", "a", "time"]
    assert [row[0] for row in lines[2:]] == [PROBLEM.size, OTHER.size, "mean", "95", "worst", "N", "sizes"]
    # Models of time get small ones wrong.
    assert lines[7][:8] == ["N", "or", "K", "<", "512", "2", "sizes", "8"]
    assert " ".join(lines[8]) == "sizes by the loss that is expected: 0.00% expected and 0.00% lost at 2"
    assert lines[2][:6] == [PROBLEM.size, "a16w16", "bf16", "8", "8", "20"]
    assert lines[2][7:10] == ["0.00%"] * 3
    assert lines[4][1:3] == ["8", "20"]
    assert second.startswith("last.py ")
    assert "the durations of 12.5% of the compiles were not recorded" in notes
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == 4
    assert [row["best"] for row in rows[:2]] == [BEST.name] * 2
    assert [row["compiled"] for row in rows] == ["8", "8", "1", "1"]
    assert rows[1] | {"M": "33", "op": "a8w8", "bias": "True", "loss": "0"} == rows[1]
    assert float(rows[2]["loss"]) > 1
    assert (rows[2]["final_loss"], rows[2]["expected_loss"]) == ("", "0.25")


def test_fewer_workers_take_longer(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a table, a file of it, or the run's own journal."""
    journal(tmp_path / "s.yaml.journal")
    seconds = []
    for recorded, jobs in ((tables, 16), (tables / "r.parquet", 1), (tmp_path / "s.yaml", 1)):
        out = tmp_path / "out.csv"
        done = run_here(capsys, "replay", recorded, "--search", "exhaustive", "-j", jobs, "-o", out)
        assert done.status == 0, done
        seconds.append(float(next(csv.DictReader(out.open()))["seconds"]))
    assert seconds[0] < seconds[1] == seconds[2]


def test_a_budget_is_a_limit(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of binaries or of seconds on the simulated clock."""
    done = run_here(capsys, "replay", tables, "--search", "predicted", "--budget", 2)
    head, _, first, *_ = [line.split() for line in done.out.splitlines()]
    assert head[:4] == ["predicted", "within", "2", "binaries,"]
    assert first[0] == PROBLEM.size
    assert int(first[5]) <= 6
    done = run_here(capsys, "replay", tables, "--search", "predicted", "--budget", "2s")
    assert done.out.startswith("predicted within 2s, 16 compiles")


def test_what_cannot_be_replayed_is_refused(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line: nothing recorded, a damaged table, no such strategy, one with a mistake."""
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "notes").write_text("notes")
    (tmp_path / "bad.py").write_text(OWN.replace("return asked", "return asked.nothing"))
    for argv, said in (
        ((tmp_path / "none.parquet",), "no such file"),
        ((tmp_path / "bad.parquet",), "not a recorded table, or damaged"),
        ((tables, "--search", "luck"), "--search luck: not"),
        ((tables, "--search", tmp_path / "bad.py"), "bad.py, line 11: AttributeError"),
        ((tables, "-o", tmp_path / "notes"), "notes exists and holds no table of replays"),
        ((tables, "-j", "0"), "not a number of workers"),
        ((tables, "--budget", "much"), "--budget much: write seconds"),
        ((), "RECORDED"),
    ):
        assert said in run_here(capsys, "replay", *argv).refusal
    assert (tmp_path / "notes").read_text() == "notes"
