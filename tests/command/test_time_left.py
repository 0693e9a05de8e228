"""Tests of genkern/command/time_left.py: an estimate that comes true where sizes take alike."""

from __future__ import annotations

import pytest

from genkern.command.time_left import Estimate, TimeLeft


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.mark.parametrize("together", [1, 4])
def test_sizes_that_take_alike_are_estimated_to_a_tenth(together: int) -> None:
    """One by one, or four at a time by four processes, after a slow first one."""
    clock, sizes, each_s = Clock(), 200, 2.0
    left = TimeLeft(sizes, clock)
    clock.s = 30.0
    told: list[tuple[float, Estimate]] = []
    for done in range(1, sizes + 1):
        if done % together == 0:
            clock.s += each_s * together
        if (estimate := left.finished()) is not None:
            told.append((clock.s, estimate))
    assert len(told) > 20
    for at_s, estimate in told:
        assert estimate.sizes == sizes
        if estimate.done > 20:
            assert estimate.left_s == pytest.approx(clock.s - at_s, rel=0.1, abs=2 * each_s * together)


def test_no_estimate_of_few_sizes_at_the_end_or_too_often() -> None:
    clock = Clock()
    few = TimeLeft(2, clock)
    clock.s = 100.0
    assert (few.finished(), few.finished()) == (None, None)
    many, told = TimeLeft(1000, clock), 0
    for _ in range(999):
        clock.s += 0.1
        told += many.finished() is not None
    assert told <= 10
