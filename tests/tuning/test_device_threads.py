"""Tests of genkern/tuning/devices.py: sizes are handed to several devices, and a lost one's to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from genkern.errors import OutputError, ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.tuning.devices import tune_all
from genkern.tuning.tune import Report

PROBLEMS = [GemmProblem(2**i, 64, 64) for i in range(6)]
WAIT_S = 10.0


class Device:
    """Tunes by calling `how` with the problem; keeps what it was given."""

    def __init__(self, how: Callable[[GemmProblem], Any] = lambda _: None, index: int = 0) -> None:
        self._how = how
        self.device_index = index
        self.given: list[GemmProblem] = []
        self.prepared: list[GemmProblem] = []

    def tune(self, problem: GemmProblem, may_prepare: Callable[[], object]) -> Report:
        may_prepare()
        self.given.append(problem)
        self._how(problem)
        return Report(problem)

    def prepare(self, problem: GemmProblem) -> None:
        self.prepared.append(problem)

    def forget(self, problem: GemmProblem) -> None:
        self.prepared.remove(problem)


def run(
    *devices: Device, problems: list[GemmProblem] = PROBLEMS, finished: Any = None, told: list[Any] | None = None
) -> list[GemmProblem]:
    """What was finished, in that order; `told` is what was said of lost devices."""
    told = [] if told is None else told
    done: list[GemmProblem] = []

    def keep(report: Report) -> None:
        done.append(report.problem)
        if finished is not None:
            finished(report)

    tuners: Any = devices
    tune_all(tuners, problems, keep, lambda index, error, left: told.append((index, str(error), left)))
    return done


def test_one_device_takes_the_sizes_in_their_order() -> None:
    """As the file lists them."""
    assert run(Device()) == PROBLEMS


def test_the_largest_come_first() -> None:
    """So that no device is left with a large one at the end; each size is tuned once."""
    met = threading.Barrier(2)
    a, b = Device(lambda p: met.wait(WAIT_S)), Device(lambda p: met.wait(WAIT_S), index=1)
    done = run(a, b)
    assert sorted(done) == sorted(a.given + b.given) == sorted(PROBLEMS)
    assert sorted(a.given[:1] + b.given[:1]) == PROBLEMS[-2:]


def test_lanes_of_one_device_take_sizes_as_they_come() -> None:
    """And the device is lost with the last of them only."""
    all_began, told = threading.Barrier(3), list[Any]()

    met = {0: False, 1: False}

    def meet(index: int) -> None:
        if not met[index]:
            met[index] = True
            all_began.wait(WAIT_S)

    def lose(problem: GemmProblem) -> None:
        all_began.wait(WAIT_S)
        raise ProfilerError("a lane is lost")

    bad, good, other = Device(lose), Device(lambda _: meet(0)), Device(lambda _: meet(1), index=1)
    assert sorted(run(bad, good, other, told=told)) == sorted(PROBLEMS)
    assert told == []
    both = threading.Event()

    def wait(problem: GemmProblem) -> None:
        if a.given and b.given:
            both.set()
        assert both.wait(WAIT_S)

    a, b = Device(wait), Device(wait)
    assert sorted(run(a, b)) == sorted(PROBLEMS)
    assert {a.given[0], b.given[0]} == set(PROBLEMS[:2])


def test_a_lost_devices_sizes_go_to_the_others() -> None:
    """All are tuned, the run does not fail, and which device was lost, why, and how many are left, is told once."""
    bad_has_one = threading.Event()

    def lose(problem: GemmProblem) -> None:
        bad_has_one.set()
        raise ProfilerError("GPU 1 is broken")

    told: list[Any] = []
    good, bad = Device(lambda _: bad_has_one.wait(WAIT_S)), Device(lose, index=1)
    assert sorted(run(good, bad, told=told)) == sorted(PROBLEMS)
    assert len(bad.given) == 1
    assert told == [(1, "GPU 1 is broken", 1)]


def test_a_device_lost_at_the_very_end_loses_nothing() -> None:
    """A device that has nothing left to do waits for what may yet come back from the others."""
    good_is_done = threading.Event()

    def lose(problem: GemmProblem) -> None:
        assert good_is_done.wait(WAIT_S)
        raise ProfilerError("GPU 1 is broken")

    both_have_one = threading.Barrier(2, timeout=WAIT_S)
    first = threading.Event()

    def tune(problem: GemmProblem) -> None:
        if not first.is_set():
            first.set()
            both_have_one.wait()

    def lose_late(problem: GemmProblem) -> None:
        both_have_one.wait()
        lose(problem)

    good = Device(tune)

    def finished(report: Report) -> None:
        if len(good.given) == len(PROBLEMS) - 1:
            good_is_done.set()

    assert sorted(run(good, Device(lose_late), finished=finished)) == sorted(PROBLEMS)


def test_without_any_device_left_the_error_is_raised() -> None:
    """It is that of the last one that was lost; only of the first was there anything to tell."""

    def lose(problem: GemmProblem) -> None:
        raise ProfilerError("broken")

    told: list[Any] = []
    with pytest.raises(ProfilerError, match="broken"):
        run(Device(lose), Device(lose, index=1), told=told)
    assert [left for _, _, left in told] == [1]


def test_what_cannot_be_told_ends_the_run() -> None:
    """A closed pipe, met while a lost device is told of, is the run's error and no thread's secret."""
    bad_has_one = threading.Event()

    def lose(problem: GemmProblem) -> None:
        bad_has_one.set()
        raise ProfilerError("broken")

    class Closed(list[Any]):
        def append(self, item: Any) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(Device(lambda _: bad_has_one.wait(WAIT_S)), Device(lose, index=1), told=Closed())


def test_an_error_of_the_run_ends_all_devices() -> None:
    """A full disk is no device's fault: the size is not tuned again elsewhere, and no further one is begun."""

    def full(report: Report) -> None:
        raise OutputError("disk full")

    both_have_one = threading.Barrier(2, timeout=WAIT_S)
    a, b = Device(lambda p: both_have_one.wait()), Device(lambda p: both_have_one.wait())
    with pytest.raises(OutputError, match="disk full"):
        run(a, b, finished=full)
    assert len(a.given) == len(b.given) == 1


@pytest.mark.parametrize("ahead", [1, 2])
def test_one_device_prepares_the_next(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are to be ahead, in their order, each once."""
    monkeypatch.setattr("genkern.tuning.devices.SIZES_AHEAD", ahead)
    seen: list[tuple[int, int]] = []
    device = Device(lambda p: seen.append((PROBLEMS.index(p), len(device.prepared))))
    run(device)
    assert device.prepared == PROBLEMS[1:]
    assert seen == [(n, min(n + ahead, len(PROBLEMS) - 1)) for n in range(len(PROBLEMS))]


def test_what_a_busy_device_prepares_goes_to_an_idle_one() -> None:
    """At the end, when nothing else is left: no device waits for another's last sizes."""
    others_are_done = threading.Event()
    busy = Device(lambda _: others_are_done.wait(WAIT_S))
    idle = Device(lambda _: None if len(idle.given) < len(PROBLEMS) - 1 else others_are_done.set())
    assert sorted(run(busy, idle)) == sorted(PROBLEMS)
    assert others_are_done.is_set()
    assert len(busy.given) == 1
    assert busy.prepared == []


def test_what_a_lost_device_prepared_goes_to_the_others() -> None:
    """And the device, whose process may live, is told so."""
    bad_has_one = threading.Event()

    def lose(problem: GemmProblem) -> None:
        bad_has_one.set()
        raise ProfilerError("GPU 1 is broken")

    good, bad = Device(lambda _: bad_has_one.wait(WAIT_S)), Device(lose, index=1)
    assert sorted(run(good, bad)) == sorted(PROBLEMS)
    assert bad.prepared == []
