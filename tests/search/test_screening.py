"""Tests of genkern/search/screening.py; what a measured process makes of it is in tests/profiling/test_server.py."""

from __future__ import annotations

import math

import pytest

from genkern.search.screening import SCREENING, screening_for
from genkern.timing.session import Budget, Screening


@pytest.mark.parametrize("budget", [Budget(exhaustive=True), Budget(protocol="tune_gemm")])
def test_an_exhaustive_budget_leaves_no_sibling_out(budget: Budget) -> None:
    """However slow the first was; what is hopeless still need not be timed to the end."""
    assert SCREENING.leaves_siblings(100.0, 10.0)
    assert not screening_for(budget).leaves_siblings(100.0, 10.0)
    assert screening_for(budget).is_hopeless(100.0, 10.0)
    assert screening_for(Budget()) == SCREENING


def test_nothing_is_left_out_before_there_is_a_best() -> None:
    """The first candidate of a size is measured to the end, whatever it takes."""
    assert not SCREENING.is_hopeless(1e6, math.inf)
    assert not SCREENING.leaves_siblings(1e6, math.inf)
    assert not SCREENING.is_long(math.inf)


@pytest.mark.parametrize("best_us", [1.0, 10.0, 1e4])
def test_a_screening_that_says_nothing_leaves_nothing_out(best_us: float) -> None:
    """As a session's that no search has made."""
    every = Screening()
    assert not every.is_hopeless(1e9, best_us)
    assert not every.leaves_siblings(1e9, best_us)
    assert not every.is_long(best_us)
