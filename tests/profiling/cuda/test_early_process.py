"""Tests of profiling/early_process.py, with real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genkern.gemm.problem import GemmProblem
from genkern.profiling.early_process import HARNESS, EarlyProcess
from genkern.profiling.measured_process import MeasuredProcess, environment_of
from genkern.profiling.supervisor import ChildDied, StreamChild, group_members
from genkern.timing.session import Budget, Session

SERVE = (*HARNESS, "--serve", "cudagraph")
FAKE = Path(__file__).parents[1] / "fake_harness.py"
# A harness that says who it is; what it is told first is its environment, as of the real one.
_PROGRAM = """
import json, os, signal, sys
told = json.loads(sys.stdin.readline())
for line in sys.stdin:
    if json.loads(line) == "die":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    print(json.dumps([told["argv"], told["environment"]["ONLY"], sys.argv[1:], os.getpgid(0)]), flush=True)
"""
WAIT_S = 20.0


@pytest.fixture
def early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EarlyProcess]:
    """One that began on a machine with NVIDIA's driver."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("genkern.profiling.early_process.HARNESS", (sys.executable, "-c", _PROGRAM))
    early = EarlyProcess()
    early.begin(["--profiler", "auto"])
    yield early
    early.close()


def taken(early: EarlyProcess) -> StreamChild:
    child = early.take((sys.executable, "-c", _PROGRAM, "--serve", "cudagraph"), {"ONLY": "this one"})
    assert child is not None
    return child


def group_of(child: StreamChild) -> int:
    child.send("who")
    return int(child.receive(WAIT_S)[3])


def ends(group: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while group_members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def in_a_fork(work: Callable[[], bool]) -> bool:
    """What a forked process, which ends at once and closes nothing, finds to be true."""
    if (pid := os.fork()) == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_an_early_process_takes_the_arguments_that_it_is_sent(early: EarlyProcess) -> None:
    """It waits with the one argument, and goes on with arguments and environment of whoever takes it; nobody else."""
    child = taken(early)
    child.send("who")
    assert child.receive(WAIT_S)[:3] == [["--serve", "cudagraph"], "this one", ["--wait"]]
    assert early.take(SERVE, {}) is None
    early.close()
    assert group_members(group_of(child))
    child.kill()


def test_how_it_died_is_told_with_its_last_words(early: EarlyProcess) -> None:
    """As of any other, also where a process tells that was forked of the one that started it."""

    def dies() -> bool:
        child = taken(early)
        child.send("die")
        try:
            child.receive(WAIT_S)
        except ChildDied as death:
            return (death.exit.returncode, death.exit.stderr_tail) == (-signal.SIGSEGV, "last words")
        return False

    assert in_a_fork(dies)


def test_how_it_died_is_not_made_up(early: EarlyProcess) -> None:
    """With its watcher gone, by no signal of ours, a fork cannot know."""

    def dies() -> bool:
        child = taken(early)
        os.kill(group_of(child), signal.SIGKILL)  # the watcher leads the group
        try:
            child.receive(WAIT_S)
        except ChildDied as death:
            return death.exit.returncode is None and death.exit.was_lost
        return False

    assert in_a_fork(dies)


def test_a_fork_that_takes_it_ends_it(early: EarlyProcess) -> None:
    """Nothing is left of it for the process that started it to end."""

    def ended() -> bool:
        child = taken(early)
        group = group_of(child)
        end = child.kill()
        return end is not None and end.returncode == -signal.SIGKILL and ends(group)

    assert in_a_fork(ended)
    early.close()


def test_of_a_fork_that_died_it_is_the_starter_s_to_end(early: EarlyProcess, tmp_path: Path) -> None:
    """A fork that took it and was killed leaves it behind; `close` ends it in the process that started it."""

    def lost() -> bool:
        (tmp_path / "group").write_text(str(group_of(taken(early))))
        return True

    assert in_a_fork(lost)
    group = int((tmp_path / "group").read_text())
    assert group_members(group)
    early.close()
    assert ends(group)


@pytest.mark.parametrize("taken_s", [0.0, 0.5])
def test_one_that_dies_at_its_start_is_replaced(
    taken_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is taken or after: the session opens in another process, and nobody is told."""
    dies = f"if '--wait' in sys.argv: time.sleep({0.5 - taken_s}); sys.exit(3)"
    program = f"import runpy, sys, time\n{dies}\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')"
    harness = sys.executable, "-c", program
    monkeypatch.setattr("genkern.profiling.early_process.HARNESS", harness)
    monkeypatch.setattr("shutil.which", lambda name, *_, **__: name)
    early = EarlyProcess()
    early.begin(["--gpu_ids", "5"])
    time.sleep(taken_s)
    process = MeasuredProcess(
        (*harness, "--serve", "cudagraph"), {**os.environ, "CUDA_VISIBLE_DEVICES": "5"}, str(tmp_path / "log"), 5, early
    )
    try:
        process.start()
        process.open(Session("", GemmProblem(64, 64, 64), "sm_90", 5, str(tmp_path), Budget()))
        assert process.device == "5"
    finally:
        process.close()


def test_nothing_begins_where_nothing_would_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVIDIA's driver there is none to take; nor for a program that is not the harness."""
    monkeypatch.setenv("PATH", "/nowhere")
    early = EarlyProcess()
    early.begin([])
    assert early.take(SERVE, {}) is None
    early.close()


def test_another_program_takes_none(early: EarlyProcess) -> None:
    """It stays what it is, for `close` to end."""
    group = early._child._group._process.pid  # type: ignore[union-attr]
    assert early.take(("sleep", "300"), {}) is None
    early.close()
    assert ends(group)


@pytest.mark.parametrize(("shown", "first"), [(None, "0"), ("3, 1", "3"), ("GPU-0a,GPU-0b", "GPU-0a")])
def test_the_first_device_has_a_context_where_nobody_names_one(
    early: EarlyProcess, monkeypatch: pytest.MonkeyPatch, shown: str | None, first: str
) -> None:
    """It is taken for that device alone; for another one, which a run may still choose, another process starts."""
    early.close()
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    for index in (0, 1):
        environment = {**environment_of("CUDA_VISIBLE_DEVICES", index, "cache"), "ONLY": "this one"}
        early = EarlyProcess()
        early.begin(["-m", "16"])
        try:
            assert early._child is not None
            child = early.take((sys.executable, "-c", _PROGRAM, "--serve", "cudagraph"), environment)
            assert (child is None) == (index == 1)
            if child is not None:
                assert environment["CUDA_VISIBLE_DEVICES"] == first
                child.send("who")
                assert child.receive(WAIT_S)[:3] == [["--serve", "cudagraph"], "this one", ["--wait", "--context"]]
                child.kill()
        finally:
            early.close()


@pytest.mark.parametrize("naming", ["--gpu_ids=1", "--gpu", "--profiler", "--prof=cupti"])
def test_options_that_name_a_device_or_a_timer_leave_it_to_later(early: EarlyProcess, naming: str) -> None:
    early.close()
    early = EarlyProcess()
    early.begin(["-m", "16", naming])
    child = taken(early)
    child.send("who")
    assert child.receive(WAIT_S)[2] == ["--wait"]
    child.kill()
    early.close()
