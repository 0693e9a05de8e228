"""Tuners in processes of their own, and what passes between them and the parent."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import ended, run, start
from machines import machine
from processes import assert_gone, until
from rich.console import Console
from test_devices import ROWS, SIZES
from test_journal import PROBLEM, SCREENED, START, WINNER, opened
from tiny_space import FASTER, tiny_command, traced

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.errors import BugError, OutputError, ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import read_journal
from genkern.journal.journal import FactWriter
from genkern.kernels.kernel import Target
from genkern.profiling.predict_profiler import PredictProfiler
from genkern.tuning.processes.driver_process import DriverProcess, Shared, driver_processes
from genkern.tuning.progress import Progress
from genkern.tuning.tune import Report


@dataclass(frozen=True)
class Stub:
    """A tuner that does in its process what it is named after."""

    does: str
    build_environment: Any
    journal: FactWriter
    progress: Any = None
    device_index: int = 0
    profiler: Any = field(default_factory=PredictProfiler)

    def tune(self, problem: GemmProblem, may_prepare: Callable[[], object]) -> Report:
        self.journal.add_screened(problem, replace(SCREENED, config=self.does))
        if self.does == "breaks":
            raise ProfilerError("GPU 0 is broken")
        if self.does == "full":
            raise OutputError("the disk is full")
        if self.does == "bug":
            raise KeyError("a bug")
        if self.does == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.does == "wins":
            self.journal.add_winner(WINNER)
        known = ", ".join([*self.journal.of(problem).screened, *(w.config.name for w in self.journal.winners())])
        return Report(problem, message=known)


@contextlib.contextmanager
def drivers(folder: Path, *kinds: str) -> Iterator[list[DriverProcess]]:
    """A process for each kind of tuner; each touches a file when it closes what it measures with."""
    farm = Farm(BinaryCache(folder / "cache"), Target("cuda", 90, 32), "3.7", jobs=1, timeout_s=1)
    journal = opened(folder / "journal")
    journal.started(START)
    shared = Shared(farm, journal, Progress(Console(quiet=True)))
    tuners: list[Any] = [Stub(kind, SimpleNamespace(farm=farm), journal) for kind in kinds]
    closings = [contextlib.ExitStack() for _ in kinds]
    for number, closing in enumerate(closings):
        closing.callback((folder / f"closed_{number}").touch)
    with driver_processes(tuners, closings, shared, lambda report: report) as made:
        yield made


def test_facts_are_written_before_the_report_is_there(tmp_path: Path) -> None:
    """What a process said of a size is in the journal's file when its report comes, its winner too."""
    with drivers(tmp_path, "wins") as (driver,):
        driver.tune(PROBLEM)
        facts = read_journal(tmp_path / "journal").of(PROBLEM)
        assert list(facts.screened) == ["wins"]
        assert facts.winner == WINNER


def test_a_process_knows_what_others_found(tmp_path: Path) -> None:
    """The winners so far, and what was screened of its size on a device that is lost; nothing else."""
    with drivers(tmp_path, "breaks", "wins", "reads") as (breaks, wins, reads):
        other = GemmProblem(64, 1280, 4096, bias=True, activation="gelu")
        with pytest.raises(ProfilerError, match="is broken"):
            breaks.tune(other)
        wins.tune(PROBLEM)
        assert reads.tune(other).message == f"breaks, reads, {WINNER.config.name}"


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("breaks", ProfilerError, "GPU 0 is broken"),
        ("full", OutputError, "the disk is full"),
        ("bug", BugError, "KeyError: 'a bug'"),
        ("dies", ProfilerError, "driver process of GPU 0 is lost .killed by SIGKILL."),
    ],
)
def test_errors_arrive_as_what_they_are(kind: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    """A lost device, a full disk, a bug (with the place where it happened), a process that was killed."""
    with drivers(tmp_path, kind) as (driver,):
        with pytest.raises(error, match=said) as caught:
            driver.tune(PROBLEM)
        assert (kind == "bug") == ("test_driver_process.py" in getattr(caught.value, "details", ""))


def test_processes_close_what_they_opened(tmp_path: Path) -> None:
    """All that were forked close in their own process, and are gone afterwards."""
    with drivers(tmp_path, "reads", "reads") as made:
        made[0].tune(PROBLEM)
    assert {path.name for path in tmp_path.glob("closed_*")} == {"closed_0", "closed_1"}
    assert all(driver._process.exitcode == 0 for driver in made)


def test_a_killed_driver_process_costs_no_size(cache_dir: Path, tmp_path: Path) -> None:
    """SIGKILL of one of two in the middle of a size: one line says so, the other device tunes all, nothing is left."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    alone = run(*tiny_command(tmp_path, cache_dir, SIZES, "alone.yaml"), env=machine(tmp_path, gpus=1, faster=FASTER))
    assert alone.status == 0
    env = machine(tmp_path, gpus=2, trace=str(trace), faster=FASTER, gate=[3, str(gate), "1"])
    process = start(*tiny_command(tmp_path, cache_dir, SIZES), "--ngpus", 2, env=env)
    until(lambda: any(event["event"] == "gate" for event in traced(trace)), process)
    (measured,) = {event["pid"] for event in traced(trace) if event["device"] == "1"}
    os.kill(parent(parent(measured)), signal.SIGKILL)
    gate.touch()
    ran = ended(process)
    assert (ran.status, ran.err) == (0, "")
    (line,) = (line for line in ran.out.splitlines() if "is lost" in line)
    assert line == (
        "device 1 is lost, its sizes go to the 1 other device: the driver process of GPU 1 is lost (killed by SIGKILL)"
    )
    assert (tmp_path / "r.yaml").read_text() == (tmp_path / "alone.yaml").read_text()
    assert ran.out.count("vendor (cudagraph)") == len(ROWS)
    assert_gone(tmp_path)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
