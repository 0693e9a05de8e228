"""Candidates that share their binaries are one request: what becomes of the others when one loses the process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from processes import WAIT_S
from test_supervised import HARNESS, candidate, events, profiler, session

from genkern.gemm.records import Candidate, Outcome
from genkern.profiling.supervised import SupervisedProfiler
from genkern.timing.session import Session
from genkern.timing.turns import Turn

__all__ = ["profiler", "session"]


@pytest.mark.parametrize("fault", ["killed", "segfault", "garbage", "fault"])
def test_a_fault_costs_its_config_only(session: Session, profiler: SupervisedProfiler, fault: str) -> None:
    """Those before it in the request are measured once, those behind it and the other requests in a new process."""
    units = [
        [candidate("good", 1), candidate(fault, 2), candidate("good", 3)],
        [candidate(fault, 4)],
        [candidate("good", number) for number in range(5, 30)],
    ]
    measured = list(profiler.screen(session, units))
    assert [m.config for m in measured] == [each.config.name for unit in units for each in unit]
    lost = [m.config for m in measured if m.outcome is not Outcome.MEASURED]
    assert lost == [units[0][1].config.name, units[1][0].config.name]
    assert [m.duration_us for m in measured if m.outcome is Outcome.MEASURED] == [1.0, 3.0, *map(float, range(5, 30))]
    assert len({pid for pid, _ in events(session)}) == 3


def test_few_are_asked_for_ahead(session: Session, profiler: SupervisedProfiler) -> None:
    """So that what is yielded late may depend on what was measured before."""
    taken: list[int] = []

    def units() -> Iterator[Sequence[Candidate]]:
        for number in range(1, 201):
            taken.append(number)
            yield [candidate("good", number)]

    for number, measurement in enumerate(profiler.screen(session, units()), start=1):
        assert measurement.duration_us == number
        assert len(taken) <= number + 25


@pytest.mark.parametrize("init_type", ["", "shy"])
def test_what_comes_later_is_rehearsed_once(session: Session, hostile_path: Path, init_type: str) -> None:
    """While there is nothing to measure, of the first size alone; a process that is lost by that costs no candidate."""
    session = replace(session, init_type=init_type, budget=replace(session.budget, libraries="triton,torch,cublaslt"))
    profiler = SupervisedProfiler("cudagraph", 0, *[str(hostile_path)] * 2, harness=HARNESS, rehearses=True)

    def rehearsed() -> list[str]:
        if not Path(session.work_dir, "log").exists():
            return []
        return [event for _, event in events(session) if event.startswith("rehearse")]

    def units(block_m: int) -> Iterator[Sequence[Candidate]]:
        yield [candidate("good", block_m)]
        deadline_s = time.monotonic() + WAIT_S
        while len(rehearsed()) < (1 if init_type else 2):
            assert time.monotonic() < deadline_s, "nothing is rehearsed"
            time.sleep(0.01)
        yield [candidate("good", block_m + 1)]

    try:
        for block_m in (10, 20):
            assert [m.duration_us for m in profiler.screen(session, units(block_m))] == [block_m, block_m + 1]
    finally:
        profiler.close()
    assert rehearsed() == ["rehearse check", "rehearse cublaslt"][: 1 if init_type else 2]


def test_a_device_of_several_is_left_to_who_measures(session: Session, hostile_path: Path) -> None:
    turn = Turn(str(hostile_path / "gpu"))
    profiler = SupervisedProfiler("cudagraph", 0, *[str(hostile_path)] * 2, harness=HARNESS, rehearses=True, turn=turn)
    try:
        assert len(list(profiler.screen(session, [[candidate("good")]]))) == 1
    finally:
        profiler.close()
    assert not [event for _, event in events(session) if event.startswith("rehearse")]
