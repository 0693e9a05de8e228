"""Tests of genkern/cli/status.py: facts in, lines out; and the command beside runs that go on, die and end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command import SMALL, run, run_here, start
from machines import machine
from processes import assert_gone, until
from tiny_space import EVERYTHING, FASTER, NAMES, facts_in, tiny_command, traced

from genkern.cli.status import RunStatus, State, duration_text, size_statuses, status_lines
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome, Unfit
from genkern.journal.facts import Begun, Compiled, Ended, JournalFacts, ProblemFacts, Start
from genkern.result.result import Result

A, B, C, D = (GemmProblem(m, 128, 256) for m in (16, 32, 64, 128))
CONFIG = Config("tiled", 16, 32, 64)
NOW_S = 1_000_000.0
START = Start((A, B, C), "python -m genkern -i 'my sizes.yaml'", "/a b", "node7", 42, NOW_S - 3723)
WINNER = Result(
    A, CONFIG, duration_us=12.5, spread_us=0.5, samples=60, time_source="cudagraph", arch="sm_90", device="NVIDIA H200"
)


def screened(name: str, outcome: Outcome, us: float | None = None) -> Measurement:
    return Measurement(name, outcome, "cudagraph", "screen", us)


def facts(*starts: Start) -> JournalFacts:
    """A has won, B is half screened, C is not begun."""
    known = JournalFacts("r.yaml.journal")
    known.starts = list(starts)
    a, b = ProblemFacts(), ProblemFacts()
    a.winner = WINNER
    a.begun = Begun(3, 0, NOW_S - 100)
    a.screened = {CONFIG.name: screened(CONFIG.name, Outcome.MEASURED, 12.0)}
    a.ended = Ended({Outcome.MEASURED: 1, Outcome.COMPILE_FAILED: 2, Outcome.PRUNED: 5000}, "")
    b.begun = Begun(1234, 1, NOW_S - 75)
    some = [("x", Outcome.MEASURED, 30.0), ("y", Outcome.MEASURED, 20.0), ("z", Outcome.CRASHED, None)]
    b.screened = {name: screened(name, outcome, us) for name, outcome, us in some}
    b.unfit = dict.fromkeys(["u", "v"], Unfit(Outcome.COMPILE_TIMED_OUT, "no result after 1 s"))
    known.facts = {A: a, B: b}
    return known


def status(state: State, known: JournalFacts | None = None) -> RunStatus:
    return RunStatus("r.yaml", state, facts(START) if known is None else known, 1.25, NOW_S)


def test_a_run_that_goes_on() -> None:
    """Who runs it, how each size is, the best so far with its source, and that there is nothing to do.

    A size whose last binary is there is no longer compiling.
    """
    compiled = facts(START)
    compiled.facts[B].compiled = Compiled(1234, 0, 0)
    lines = status_lines(status(State.GOING_ON))
    assert lines[0] == "r.yaml: going on for 1 h 2 min (process 42 on node7)"
    done, flying, waiting = (" ".join(line.split()) for line in lines[2:5])
    assert done == f"16x128x256 done 1 of 3 12.50 cudagraph {CONFIG.name} measured 1, compile_failed 2, pruned 5,000"
    became = "measured 2, crashed 1, compile_timed_out 2"
    in_flight = f"in flight 1 min 15 s, compiling 3 of 1,234 20.00 cudagraph, screened once y {became}"
    assert flying == f"32x128x256 {in_flight}"
    assert "in flight 1 min 15 s  " in status_lines(status(State.GOING_ON, compiled))[3]
    assert waiting == "64x128x256 not begun"
    assert lines[5] == "1 of 3 sizes done; the last fact is 1.2 s old"
    assert lines[6].startswith("Nothing to do")


def test_a_run_that_died() -> None:
    """Nothing is in flight, and the way on is the command itself, to be pasted into any shell."""
    lines = status_lines(status(State.STOPPED))
    assert lines[0] == "r.yaml: not going on: stopped, or died"
    assert " begun " in lines[3]
    assert lines[-2:] == [
        "Run the same command again to go on:",
        "  cd '/a b' && python -m genkern -i 'my sizes.yaml'",
    ]


def test_finals_come_before_the_screening() -> None:
    """The best so far is of the finals, once there are some, and never the vendor library."""
    known = facts(START)
    times = {"vendor": 1.0, "x": 29.0, "y": 31.0}
    known.facts[B].finals = [Measurement(n, Outcome.MEASURED, "cudagraph", "final", us) for n, us in times.items()]
    best = size_statuses(status(State.GOING_ON, known))[1].best
    assert best is not None
    assert (best.config, best.duration_us, best.stage) == ("x", 29.0, "final")


def test_a_size_without_a_winner() -> None:
    """Counts as done, has no best, and the advice of a finished run says how to try it again."""
    known = facts(replace(START, problems=(A, B)))
    known.facts[B].ended = Ended({Outcome.CRASHED: 3}, "no candidate could be measured")
    lines = status_lines(status(State.FINISHED, known))
    assert " ".join(lines[3].split()) == "32x128x256 no winner 3 of 1,234 crashed 3"
    assert lines[4].startswith("2 of 2 sizes done")
    assert "tried again by the same command" in lines[5]


def test_sizes_of_earlier_starts() -> None:
    """Those tuned before the run was stopped count; those that the last start no longer wants do not."""
    earlier, last = replace(START, problems=(D, A, B)), replace(START, problems=(B, C))
    sizes = size_statuses(status(State.GOING_ON, facts(earlier, last)))
    assert [(size.problem, size.state.split()[0]) for size in sizes] == [(A, "done"), (B, "in"), (C, "not")]


def test_several_formats_are_named() -> None:
    """Equal sizes of other types are told apart."""
    known = facts(replace(START, problems=(A, replace(A, bias=True))))
    lines = status_lines(status(State.GOING_ON, known))
    assert lines[2].startswith("16x128x256 a16w16 bf16 ")
    assert lines[3].startswith("16x128x256 a16w16 bf16 bias")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(-5.0, "0.0 s"), (0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (3599.4, "59 min 59 s")],
        *[(3599.6, "1 h 0 min"), (48 * 3600.0 - 1, "47 h 59 min"), (76 * 3600.0, "3 d 4 h")],
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Two units at most, and never negative: the clock of the other machine may be ahead."""
    assert duration_text(seconds) == text


def test_before_the_journal_is_there() -> None:
    """A run that has only just begun, or died at once, is no error."""
    assert status_lines(RunStatus("r", State.GOING_ON, None, 0, 0)) == ["r: going on; nothing is recorded yet"]


def test_beside_a_real_run(cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Going on, then killed (with half a line at the end), then finished: each time by any of its files.

    Nothing is written, and the run does not notice.
    """
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    command = [*tiny_command(tmp_path, cache_dir, SMALL), *EVERYTHING]
    what = {"trace": str(trace), "faster": FASTER, "gate": [13, str(gate)]}
    process = start(*command, env=machine(tmp_path, gpus=1, **what))

    def written(fact: str, count: int) -> bool:
        return facts_in(tmp_path / "r.yaml.journal").count(fact) == count

    until(lambda: written("screened", 12) and written("compiled", 2), process)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("r.yaml*")}
    for path in ("r.yaml", "r.yaml.journal", "."):
        ran = run_here(capsys, "status", tmp_path / path, "--wide")
        assert (ran.status, ran.err) == (0, "")
        lines = ran.out.splitlines()
        assert lines[0].startswith(f"{tmp_path / 'r.yaml'}: going on for ")
        assert f"(process {process.pid} on " in lines[0]
        assert " ".join(lines[2].split()[:5]) == "16x128x256 done 8 of 8"
        assert "in flight" in lines[3]
        assert " 4 of 8 " in lines[3]
        assert "not begun" in lines[4]
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("r.yaml*")} == files
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # What it measured with would go on behind the gate.
    assert_gone(tmp_path)
    with open(tmp_path / "r.yaml.journal", "ab") as journal:
        journal.write(b'{"fact":"screened","pro')
    ran = run_here(capsys, "status", tmp_path / "r.yaml")
    died = ran.out
    # For a monitor: sizes are left, and nobody works on them.
    assert ran.status == 1
    assert died.startswith(f"{tmp_path / 'r.yaml'}: not going on: stopped, or died\n")
    (advice,) = (line for line in died.splitlines() if line.startswith("  cd "))
    gate.touch()
    # As a person would: by a shell, on the same machine.
    on = machine(tmp_path, gpus=1, **what)
    assert advice == f"  cd {Path.cwd()} && python -m genkern {' '.join(map(str, command))}"
    before, started_s = len(traced(trace)), time.monotonic()
    assert run(*command, env=on).status == 0
    ran = run_here(capsys, "status", tmp_path / "r.yaml")
    finished = ran.out
    assert ran.status == 0
    assert finished.startswith(f"{tmp_path / 'r.yaml'}: finished\n")
    assert "3 of 3 sizes done" in finished
    assert min(NAMES, key=FASTER.__getitem__) in finished
    assert len([e for e in traced(trace) if e["event"].startswith("screen")]) <= 3 * len(NAMES) + 1
    print(f"recovery killed run: {traced(trace)[before]['monotonic_s'] - started_s:.2f} s")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["a", "b"], "unrecognized arguments: b"),
        (["--all"], "--all"),
        ([], "output: no such file"),
    ],
)
def test_what_cannot_be_shown(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, status 2; without RUN the folder is meant into which results go without -o."""
    monkeypatch.chdir(tmp_path)
    assert said in run_here(capsys, "status", *argv).refusal


def test_a_damaged_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says where; the journal stays as it is."""
    journal = tmp_path / "r.yaml.journal"
    for text, said in (
        ("what is this\n", "line 1: damaged"),
        ('{"fact":"header","value":{"schema":99}}\n', "schema 99, here"),
    ):
        journal.write_text(text)
        assert said in run_here(capsys, "status", tmp_path).refusal
        assert journal.read_text() == text


def test_the_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Tuning's own help leads here, and here is one of its own."""
    for argv, said in ((["--help"], "status"), (["status", "--help"], "RUN")):
        with pytest.raises(SystemExit):
            run_here(capsys, *argv)
        assert said in capsys.readouterr().out
