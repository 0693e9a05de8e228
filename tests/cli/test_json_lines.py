"""Commands with --json print JSON, one object a line, and nothing else on standard output; tables are 100 wide."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, run_here
from winner_factory import LONG, report, winner, write_results

from genkern.cli.recorder import Recorder
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.results import ResultsFile, RunFacts
from genkern.gemm.gpus import gpu_for_arch
from genkern.journal.bug_log import BugLog
from genkern.result.device import DeviceKey
from genkern.screen import COLUMNS, Screen, columns_of, fitted, put, put_table
from genkern.subcommands import COMMANDS, MODES

SPACE = str(ROOT / "tests" / "tiny_nvidia.yaml")
SIZE = ("-m", 16, "-n", 64, "-k", 64, "--arch", "sm_90", "--space", SPACE)


def events(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> list[dict[str, Any]]:
    ran = run_here(capsys, *argv, "--json")
    assert ran.status == status, ran
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_run_prints_a_record_of_each_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the source of its time; then what the whole run found, and what to do next."""
    found = events(capsys, "tune", *SIZE, "-o", tmp_path / "r.yaml")
    (size,) = (each for each in found if each["event"] == "size")
    assert (size["size"], size["time_source"], size["vendor_us"]) == ("16x64x64", "predicted", None)
    assert size["us"] > 0
    (summary,) = (each for each in found if each["event"] == "summary")
    assert (summary["winners"], summary["failed"]) == (1, 0)
    assert sum(summary["candidates"].values()) > 1
    assert found[-1]["event"] == "next"
    (shown,) = events(capsys, "status", tmp_path / "r.yaml")
    assert shown["size"] == "16x64x64"


def test_explain_counts_in_json_what_it_counts_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = events(capsys, "explain", *SIZE)
    assert found["total"] == found["kept"] + sum(found["dropped"].values()) + sum(found["illegal"].values())
    assert f"{found['kept']:>9,}" in run_here(capsys, "explain", *SIZE).out


def test_check_prints_a_verdict_of_each_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fast_checks: None
) -> None:
    path = tmp_path / "r.yaml"
    assert run_here(capsys, "tune", *SIZE, "-o", path).status == 0
    (check, *_) = events(capsys, "check", path, "--arch", "sm_90")
    assert (check["event"], check["verdict"]) == ("check", "ok")


@pytest.mark.parametrize("argv", [("ops",), ("doctor", "--quick"), ("cache",), ("status", "FILE"), ("check",)])
def test_nothing_but_json_is_printed(argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "r.yaml", [winner()])
    ran = run_here(capsys, *(str(tmp_path / "r.yaml") if each == "FILE" else each for each in argv), "--json")
    for line in ran.out.splitlines():
        assert "event" in json.loads(line)
    assert ran.status < 2 or not ran.out


def test_numbers_that_json_lacks_become_null() -> None:
    screen = Screen(stderr=False, is_json=True)
    screen.file = io.StringIO()
    put(screen, "x", {"a": float("nan"), "b": float("inf"), "c": (1, None), "d": Path("p")}, ())
    screen.print("text\nmore")
    lines = [json.loads(line) for line in screen.file.getvalue().splitlines()]
    assert lines[0] == {"event": "x", "a": None, "b": None, "c": [1, None], "d": "p"}
    assert [line["text"] for line in lines[1:]] == ["text", "more"]


def test_a_tables_rows_are_records() -> None:
    """Keys are the titles of columns; cells of numbers are numbers, empty cells are not there."""
    screen = Screen(stderr=False, is_json=True)
    screen.file = io.StringIO()
    put_table(screen, "row", [["size", "best us", "why"], ["1x1x1", "1,234.5", ""]], ["best us"])
    assert json.loads(screen.file.getvalue()) == {"event": "row", "size": "1x1x1", "best_us": 1234.5}


def test_a_table_is_at_most_100_columns_wide_and_loses_nothing() -> None:
    """The last columns, as many as must, are on lines of their own; --wide leaves every line whole."""
    rows = [
        ["size", "us", "device", "winner"],
        ["16x4096x4096", "9.00", "d" * 60, "w" * 90],
        ["1x1x1", "1.00", "e", ""],
    ]
    lines = fitted(rows, ["us"], COLUMNS)
    assert max(map(len, lines)) <= COLUMNS
    assert all(any(cell in line for line in lines) for row in rows for cell in row)
    assert max(map(len, fitted(rows, ["us"], None))) > COLUMNS
    assert columns_of(Screen(stderr=False)) == COLUMNS
    assert columns_of(Screen(stderr=False, is_wide=True)) is None


def test_the_table_of_winners_fits(tmp_path: Path) -> None:
    """With names as long as they get, in a pipe."""
    screen = Screen(stderr=False)
    screen.file = io.StringIO()
    path = str(tmp_path / "r.yaml")
    facts = RunFacts(DeviceKey("gfx942", "AMD Instinct MI300X", 304), {"triton": "3.7.0"}, predicted=False)
    made = winner(16, config=LONG, vendor_us=12.0, torch_us=13.0)
    recorder = Recorder(
        [made.problem], ResultsFile(path, facts, GemmDefaults()), None, screen, BugLog(tmp_path / "log", {}, "x")
    )
    recorder.finished(report(made))
    recorder.flush()
    before = screen.file.tell()
    recorder.summary(gpu_for_arch("gfx942"), None)
    table = screen.file.getvalue()[before:]
    assert max(map(len, table.splitlines())) <= 100
    assert LONG.name in table


def test_every_command_takes_json_and_wide() -> None:
    """By its parser."""
    import importlib

    from genkern.cli.options import parser

    for word, each in COMMANDS.items():
        name = word.replace("-", "_")
        of = parser(word) if word in MODES else getattr(importlib.import_module(each.module), f"{name}_parser")()
        assert {"--json", "--wide"} <= {*of._option_string_actions}, word
        assert of._action_groups[-1].title == "output"
