"""What the screening of a size need not measure to the end."""

from __future__ import annotations

from dataclasses import replace

from genkern.timing.session import Budget, Screening

SCREENING = Screening(
    # A candidate whose single launch takes this much longer than the best sample so far is not timed further.
    hopeless_factor=1.6,
    hopeless_slack_us=40.0,
    # Configs that differ in GROUP_SIZE_M alone are not launched once the first of them, the one nearest to 8
    # (`promising_first`), took this many times the best sample. On an H200 (2026-11-21, Triton 3.6.0; journals of runs
    # that left siblings out at twice the best), 11 sizes with M of 1024 and 4096: it took at most 1.03 times the best
    # for the 31 binaries whose fastest group size was within 3 % of the best, and 1.24 times for the 249 within 10 %.
    sibling_factor=1.5,
    # Where the best takes longer than this, cold code costs a first launch some microseconds only, and a second launch
    # of thousands of candidates would cost minutes.
    long_us=500.0,
)


def screening_for(budget: Budget) -> Screening:
    """How to screen with `budget`; an exhaustive one has every group size measured."""
    return replace(SCREENING, sibling_factor=None) if budget.every else SCREENING
