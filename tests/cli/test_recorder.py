"""Tests of genkern/cli/recorder.py: what is written when, and what is said."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from winner_factory import checked, report, winner

from genkern.cli.candidates_file import CandidatesFile
from genkern.cli.pace import Pace
from genkern.cli.recorder import Recorder
from genkern.compile.farm import FarmCounts
from genkern.errors import BugError
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.results import ResultsFile, RunFacts
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.journal.bug_log import BugLog
from genkern.result.device import DeviceKey
from genkern.result.result import Result
from genkern.tuning.devices import tune_all
from genkern.tuning.tune import Report

DEVICE = DeviceKey("gfx942", "AMD Instinct MI300X", 304)
PROBLEMS = [winner(m).problem for m in (8, 4, 2, 1)]


def recorder(path: Path, output: io.StringIO, **options: object) -> Recorder:
    """One whose writing takes no time, so that it is always due."""
    options = {"pace": Pace(lambda: 0.0), **options}
    facts = RunFacts(DEVICE, {"triton": "3.7.0"}, predicted=False)
    console = Console(file=output, soft_wrap=True, **options.pop("console", {}))  # type: ignore[arg-type]
    results = ResultsFile(str(path / "r.yaml"), facts, GemmDefaults())
    candidates = CandidatesFile(str(path / "c.csv"), PROBLEMS)
    bug_log = BugLog(path / "r.yaml.bug.log", facts.versions, "genkern -i sizes.yaml")
    return Recorder(PROBLEMS, results, candidates, console, bug_log, **options)  # type: ignore[arg-type]


def written(path: Path) -> list[int]:
    file = path / "r.yaml"
    return [entry["M"] for entry in yaml.safe_load(file.read_text())] if file.exists() else []


@pytest.mark.parametrize(
    ("batch", "seen"), [(1, [1, 2, 3, 4]), (2, [0, 2, 2, 4]), (3, [0, 0, 3, 3]), (9, [0, 0, 0, 0])]
)
def test_results_are_written_after_every_batch(batch: int, seen: list[int], tmp_path: Path) -> None:
    """And the rest when asked; candidates are written with every size."""
    made = recorder(tmp_path, io.StringIO(), batch=batch)
    for number, m in enumerate((8, 4, 2, 1)):
        made.finished(report(winner(m)))
        assert len(written(tmp_path)) == seen[number]
        assert len((tmp_path / "c.csv").read_text().splitlines()) == 1 + 3 * (number + 1)
    made.flush()
    assert written(tmp_path) == [8, 4, 2, 1]


def test_results_stand_in_the_order_of_the_list(tmp_path: Path) -> None:
    """Whichever device was done first."""
    made = recorder(tmp_path, io.StringIO())
    for m in (1, 4, 8):
        made.finished(report(winner(m)))
    assert written(tmp_path) == [8, 4, 1]


def test_a_size_without_a_winner_is_told_and_counted(tmp_path: Path) -> None:
    """It has no entry; the others have theirs."""
    output = io.StringIO()
    made = recorder(tmp_path, output)
    made.finished(report(None, PROBLEMS[0]))
    made.finished(report(winner(4)))
    assert made.failed == 1
    assert written(tmp_path) == [4]
    assert "8x4096x4096: no winner: no way\n" in output.getvalue()


def test_a_bug_is_told_logged_and_counted(tmp_path: Path) -> None:
    """One line says which size, what, where the rest is, and to report it; the log has traceback and command."""
    output = io.StringIO()
    made = recorder(tmp_path, output)
    made.finished(replace(report(None, PROBLEMS[0]), bug=BugError("KeyError: 'x'", "Traceback: at line 3\n")))
    made.finished(replace(report(winner(4)), warnings=("no gemv config ran (launch_failed 2): out of resource",)))
    assert (made.failed, made.bugs, written(tmp_path)) == (1, 1, [4])
    first, _, warning = output.getvalue().splitlines()
    log = tmp_path / "r.yaml.bug.log"
    assert first == f"8x4096x4096: a bug in genkern: KeyError: 'x'; {log} has details: please report it"
    assert warning == "4x4096x4096: warning: no gemv config ran (launch_failed 2): out of resource"
    for part in ("8x4096x4096", "genkern -i sizes.yaml", "triton 3.7.0", "KeyError: 'x'", "Traceback: at line 3"):
        assert part in log.read_text()


@pytest.mark.parametrize(("console", "most"), [({"force_terminal": True, "width": 80}, 80), ({"width": 80}, 100)])
def test_the_summary_fits_its_reader(console: dict[str, object], most: int, tmp_path: Path) -> None:
    """No line of the table is longer than the terminal, or than 100 columns in a pipe; names are on lines of their
    own."""
    output = io.StringIO()
    made = recorder(tmp_path, output, verbose=True, console={**console, "color_system": None})
    made.finished(report(winner(8, check=checked("8x256x256", "interpreter"))))
    made.finished(report(winner(4)))
    output.truncate(0)
    made.summary(gpu_for_arch("gfx942"), FarmCounts(compiled=1234, cached=5, failed=6))
    lines = output.getvalue().replace("\0", "").splitlines()
    table = [line for line in lines if "4096x4096" in line]
    assert [("tiled_" in line) for line in table] == [False] * 2
    # A path is as long as it is.
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= most
    assert "candidates: measured 2, wrong 2, compile_failed 2" in lines
    assert "binaries: 1,234 compiled, 5 from the cache, 6 refused" in lines
    assert f"results: {tmp_path / 'r.yaml'}" in [line.strip() for line in lines]
    assert any(line.startswith("check: under Triton's interpreter") for line in lines)


class Written(ResultsFile):
    """Counts what is written, which takes the clock a microsecond a byte."""

    bytes = 0
    now_s = 0.0

    def write(self, winners: Sequence[Result]) -> None:
        super().write(winners)
        size = Path(self.path).stat().st_size
        self.bytes += size
        self.now_s += 1e-6 * size


def bytes_written(path: Path, sizes: int, seconds_each: float) -> int:
    """By a run of so many sizes that takes so long for each, as a tuner does."""
    problems = [winner(m).problem for m in range(1, sizes + 1)]
    results = Written(str(path / "r.yaml"), RunFacts(DEVICE, {}, predicted=False), GemmDefaults())
    pace = Pace(lambda: results.now_s)
    bug_log = BugLog(path / "bug.log", {}, "genkern")
    made = Recorder(problems, results, None, Console(quiet=True), bug_log, pace=pace)

    class Tunes:
        device_index = 0

        def tune(self, problem: GemmProblem, may_prepare: Callable[[], object]) -> Report:
            results.now_s += seconds_each
            return report(winner(problem.M))

        def prepare(self, problem: GemmProblem) -> None:
            raise AssertionError("nobody said that it may")

        forget = prepare

    tune_all([Tunes()], problems, made.finished, made.lost)
    made.flush()
    assert len((path / "r.yaml").read_text().splitlines()) == 1 + sizes
    return results.bytes


@pytest.mark.parametrize("seconds_each", [0.0, 0.1])
def test_what_is_written_grows_as_the_run_does(seconds_each: float, tmp_path: Path) -> None:
    """Ten times the sizes are about ten times the bytes; after every size it would be a hundred times."""
    (tmp_path / "small").mkdir()
    small = bytes_written(tmp_path / "small", 100, seconds_each)
    assert bytes_written(tmp_path, 1000, seconds_each) < 20 * small


def test_what_stood_in_for_the_operands_is_told(tmp_path: Path) -> None:
    """In the table, at the end, and in the file: a check of other types is no check of these."""
    output = io.StringIO()
    made = recorder(tmp_path, output)
    made.finished(report(winner(8, check=checked("8x256x256", "interpreter", "fp16"))))
    made.summary(gpu_for_arch("gfx942"), FarmCounts())
    assert "check: with operands in fp16, instead of the type of these sizes" in output.getvalue()
    assert yaml.safe_load((tmp_path / "r.yaml").read_text())[0]["check"] == "interpreter with fp16 operands"


def test_nothing_to_show_is_short(tmp_path: Path) -> None:
    """No table and no results file without a winner."""
    output = io.StringIO()
    made = recorder(tmp_path, output)
    made.finished(report(None, GemmProblem(1, 2, 3)))
    made.summary(gpu_for_arch("gfx942"), FarmCounts())
    assert "results:" not in output.getvalue()
    assert "candidates: none\n" in output.getvalue()
