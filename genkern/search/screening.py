"""Thresholds at which the screening of a size stops measuring a candidate."""

from __future__ import annotations

from dataclasses import replace

from genkern.timing.session import Budget, Screening

SCREENING = Screening(
    # A candidate whose single launch takes this much longer than the best sample so far is not timed further.
    hopeless_factor=1.6,
    hopeless_slack_us=40.0,
    # Of configs that differ only in GROUP_SIZE_M, the one nearest to 8 is launched first (`promising_first`). The
    # others are not launched if it took this many times the best sample. Measured on an H200 (Triton 3.6.0) for 11
    # sizes with M of 1024 and 4096: the first took at most 1.03 times the best for the 31 binaries whose fastest group
    # size was within 3 % of the best, and 1.24 times for the 249 binaries within 10 %.
    sibling_factor=1.5,
    # If the best takes longer than this, the first launch of a candidate is its sample: cold code costs that launch
    # only some microseconds, while second launches of thousands of candidates would take minutes.
    long_us=500.0,
)


def screening_for(budget: Budget) -> Screening:
    """Return the screening for `budget`; with an exhaustive budget every group size is measured."""
    return replace(SCREENING, sibling_factor=None) if budget.every else SCREENING
