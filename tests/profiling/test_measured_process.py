"""Tests of profiling/measured_process.py with real processes; faults of candidates are in
test_supervised_profiler.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genkern.errors import ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.profiling import measured_process
from genkern.profiling.measured_process import MeasuredProcess, SessionRefused, loss
from genkern.profiling.supervisor import ChildDied, ChildGarbled, ChildTimedOut, Exit
from genkern.timing.session import Budget, Session

HARNESS = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_harness.py")), "--serve", "cudagraph")
WAIT_S = 10.0


@pytest.fixture
def session(hostile_path: Path) -> Session:
    return Session("", GemmProblem(64, 64, 64), "sm_90", 3, str(hostile_path), Budget())


@pytest.fixture
def process(hostile_path: Path) -> Iterator[MeasuredProcess]:
    process = MeasuredProcess(HARNESS, {**os.environ, "CUDA_VISIBLE_DEVICES": "5"}, str(hostile_path / "harness"), 3)
    yield process
    process.close()


def opened_by(session: Session) -> list[int]:
    """Ids of the processes that opened a session, one for each time."""
    lines = Path(session.work_dir, "log").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line.endswith(" open")]


def test_a_session_is_opened_once(session: Session, process: MeasuredProcess) -> None:
    """Asking for what is open does nothing; another session is opened in the same process."""
    process.open(session)
    process.open(session)
    process.open(replace(session, seed=1))
    pids = opened_by(session)
    assert len(pids) == 2
    assert len(set(pids)) == 1
    assert (process.device, process.torch_version) == ("5", "2.13")


def test_a_process_that_was_started_before_is_opened(session: Session, process: MeasuredProcess) -> None:
    """It makes itself ready meanwhile; starting it once more, or when it is open, does nothing."""
    process.start()
    process.start()
    process.open(session)
    process.start()
    assert process.send({"command": "screen", "configs": ["good_BM1"], "binaries": []})
    assert process.receive(WAIT_S)["samples_us"] == [1.0]
    assert len(opened_by(session)) == 1


def test_what_goes_wrong_at_a_start_is_told_when_it_is_opened(
    session: Session, process: MeasuredProcess, hostile_path: Path
) -> None:
    """One that dies is replaced, as one that dies when it is opened; a program that is not there is told of."""
    process._environment["BREAKS_AT"] = "start"
    process.start()
    process._environment.clear()
    process._environment.update(os.environ)
    process.open(session)
    assert len(opened_by(session)) == 1
    nothing = MeasuredProcess(["/nowhere"], os.environ, str(hostile_path / "harness"), 3)
    nothing.start()
    with pytest.raises(ProfilerError, match="no such program"):
        nothing.open(session)


def test_a_lost_process_is_replaced_by_the_one_in_reserve(session: Session, process: MeasuredProcess) -> None:
    """Replacements stand by, the first one too; logs go by turns to two files."""
    for _ in range(3):
        process.open(session)
        process.lost()
        process.open(session)
        process.lost()
    assert len(set(opened_by(session))) == 6
    assert sorted(path.name for path in Path(session.work_dir).glob("harness*")) == ["harness_0.log", "harness_1.log"]


def test_sending_to_the_dead_says_so(session: Session, process: MeasuredProcess) -> None:
    """Rather than raising: whose fault it is depends on what was under way."""
    process.open(session)
    pid = opened_by(session)[0]
    assert process.send({"command": "screen", "configs": ["good_BM1"], "binaries": []})
    assert process.receive(WAIT_S)["samples_us"] == [1.0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ChildDied):
        process.receive(WAIT_S)
    assert not process.send({"command": "screen", "configs": ["good_BM1"], "binaries": []})


def test_a_refused_session_leaves_the_process_alone(session: Session, process: MeasuredProcess) -> None:
    """The device works: the next session opens in the same process."""
    with pytest.raises(SessionRefused, match=r"GPU 3 .*64x64x64: OutOfMemoryError: CUDA out of memory"):
        process.open(replace(session, init_type="refuse"))
    process.open(session)
    assert len(set(opened_by(session))) == 1


def test_a_device_that_cannot_be_opened_is_tried_three_times(session: Session, process: MeasuredProcess) -> None:
    """Then it is reported, with the end of what was said."""
    with pytest.raises(ProfilerError, match=r"GPU 3 .*illegal memory access.*--gpu_ids"):
        process.open(replace(session, init_type="broken"))
    assert len(opened_by(session)) == 3


def test_a_device_that_hangs_when_opened_is_tried_once(
    session: Session, hostile_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three minutes are enough to be told so."""
    monkeypatch.setattr(measured_process, "_OPEN_TIMEOUT_S", 0.2)
    process = MeasuredProcess(["sleep", "300"], os.environ, str(hostile_path / "harness"), 0)
    with pytest.raises(ProfilerError, match=r"GPU 0 .* 0\.2 s"):
        process.open(session)
    process.close()
    assert [path.name for path in hostile_path.glob("harness*")] == ["harness_0.log"]


def test_losses_become_outcomes() -> None:
    """A time-out is one; all else is a crash, with the last lines of standard error on one line, cut to size."""
    died = ChildDied("", Exit(-11, False, 1.0, "a\n\nb\n  c\t d\ne\n"))
    assert loss(died) == (Outcome.CRASHED, "the measured process was lost: killed by SIGSEGV; b | c d | e")
    silent = ChildDied("", Exit(0, False, 1.0, ""))
    assert loss(silent) == (Outcome.CRASHED, "the measured process was lost: exit code 0")
    assert len(loss(ChildDied("", Exit(1, False, 1.0, "x" * 1000)))[1]) < 400
    assert loss(ChildTimedOut("no answer")) == (Outcome.TIMED_OUT, "no answer")
    assert loss(ChildGarbled("no JSON")) == (Outcome.CRASHED, "no JSON")


def test_nobody_forks_in_the_middle_of_a_start(
    session: Session, process: MeasuredProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the farm forks has no pipe of a start: held open, it would keep the start from its end."""
    forks: list[threading.Event] = []
    started = subprocess.Popen

    def fork(forked: threading.Event) -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        forked.set()

    def start(*args: Any, **named: Any) -> Any:
        forks.append(threading.Event())
        threading.Thread(target=fork, args=(forks[-1],)).start()
        assert not forks[-1].wait(0.2)
        return started(*args, **named)

    monkeypatch.setattr(subprocess, "Popen", start)
    process.open(session)
    assert all(forked.wait(WAIT_S) for forked in forks)
    assert len(forks) == 2
