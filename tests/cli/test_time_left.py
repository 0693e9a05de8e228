"""Tests of genkern/cli/time_left.py: an estimate that comes true where sizes take alike."""

from __future__ import annotations

import pytest

from genkern.cli.time_left import Estimate, TimeLeft
from genkern.gemm.problem import GemmProblem


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def problems(sizes: int) -> list[GemmProblem]:
    """So many problems, whose M go up and down."""
    return [GemmProblem(2 ** (number % 12), 64, 64 + number) for number in range(sizes)]


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("grows", [False, True])
def test_an_estimate_comes_true_within_a_seventh(together: int, grows: bool) -> None:
    """One by one, or four at a time by four processes, after a slow first one; also if large M take longer."""
    clock, sizes = Clock(), problems(240)
    left = TimeLeft(sizes, clock)
    clock.s = 30.0
    told: list[tuple[float, Estimate]] = []
    waiting_s = 0.0
    for done, problem in enumerate(sizes, start=1):
        waiting_s += 2.0 + (problem.M.bit_length() / 4 if grows else 0.0)
        if done % together == 0:
            clock.s += waiting_s
            waiting_s = 0.0
        if (estimate := left.finished(problem)) is not None:
            told.append((clock.s, estimate))
    assert len(told) > 20
    for at_s, estimate in told:
        assert estimate.sizes == len(sizes)
        if estimate.done > 24:
            assert estimate.left_s == pytest.approx(clock.s - at_s, rel=1 / 7, abs=10 * together)


def test_no_estimate_of_few_sizes_at_the_end_or_too_often() -> None:
    clock, few, many = Clock(), problems(2), problems(1000)
    left = TimeLeft(few, clock)
    clock.s = 100.0
    assert [left.finished(each) for each in few] == [None, None]
    left, told = TimeLeft(many, clock), 0
    for each in many:
        clock.s += 0.1
        told += left.finished(each) is not None
    assert 1 < told <= 10
