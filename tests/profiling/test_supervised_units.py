"""Candidates that share their binaries are one request: what becomes of the others when one loses the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from test_supervised_profiler import candidate, events, profiler, session

from genkern.gemm.records import Candidate, Outcome
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.timing.session import Session

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
