"""Compares results with older results of the same sizes: what became faster or slower, and how certain that is.

The p-value is of a two-sided z-test of the logarithms of both medians. Their standard errors come from the 95 %
intervals in the files, or from the interquartile range if an interval has no width. It covers the noise within each run
only: another clock, driver or temperature also changes times. The ratio of the library's own times shows such changes.
Holm's method corrects for the number of sizes (S. Holm, Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist

from genkern.formats.tuned_row import TunedRow
from genkern.gemm.problem import GemmProblem
from genkern.results_report.record import FASTER, NOT_COMPARED, SAME, SLOWER, Change
from genkern.results_report.sizes import device_text, ratio_interval
from genkern.timing.statistics import CONFIDENCE, TIE_RATIO

# A change counts if its corrected p-value is below this, and if it is larger than the ratio of a tie.
SIGNIFICANT = 0.05
_NORMAL = NormalDist()
_WIDTH = 2 * _NORMAL.inv_cdf(0.5 + CONFIDENCE / 2)
# Standard error of a median of normal samples from their interquartile range: sqrt(pi / 2) / 1.349 / sqrt(count).
_OF_RANGE = math.sqrt(math.pi / 2) / 1.349


def changes_of(new: Sequence[TunedRow], old: Sequence[TunedRow]) -> tuple[list[Change | None], list[GemmProblem]]:
    """Return the change of each new row, None if no old row has its problem, and the problems that only `old` has.

    A row is compared with the old row of its problem on its own device. If the old files have none, but one for another
    device, it is compared with that one.
    """
    by_problem: dict[GemmProblem, list[TunedRow]] = {}
    for row in old:
        by_problem.setdefault(row.problem, []).append(row)
    found = [_change(row, _counterpart(row, by_problem.get(row.problem, ()))) for row in new]
    here = {row.problem for row in new}
    return _corrected(found), [problem for problem in by_problem if problem not in here]


def _counterpart(row: TunedRow, old: Sequence[TunedRow]) -> TunedRow | None:
    same = [each for each in old if device_text(each) == device_text(row)]
    return (same or list(old) or [None])[0]  # type: ignore[list-item]


def _change(new: TunedRow, old: TunedRow | None) -> Change | None:
    if old is None:
        return None
    low, high = old.interval_us or (None, None)
    name = old.config.name if old.config else old.kernel_name
    change = Change(
        NOT_COMPARED,
        old.duration_us,
        low,
        high,
        name,
        device_text(old),
        name != (new.config.name if new.config else new.kernel_name),
    )
    if why := _not_comparable(new, old):
        return replace(change, why=why)
    new_us, old_us = new.duration_us or math.nan, old.duration_us or math.nan
    around = ratio_interval(new_us, new.interval_us, old_us, old.interval_us)
    errors = [_relative_error(row) for row in (new, old)]
    error = math.hypot(*(each for each in errors if each is not None))
    p = 2 * _NORMAL.cdf(-abs(math.log(new_us / old_us)) / error) if None not in errors and error > 0 else None
    return replace(
        change,
        why="" if p is not None else "the files do not say how noisy the times are",
        ratio=new_us / old_us,
        ratio_low=around[0] if around else None,
        ratio_high=around[1] if around else None,
        p=p,
        library_ratio=new.vendor_us / old.vendor_us if new.vendor_us and old.vendor_us else None,
    )


def _not_comparable(new: TunedRow, old: TunedRow) -> str:
    if new.duration_us is None or old.duration_us is None:
        return "a time is missing"
    if new.predicted or old.predicted:
        which = (
            "both times are" if new.predicted and old.predicted else f"the {'new' if new.predicted else 'old'} time is"
        )
        return f"{which} predicted"
    return ""


def _relative_error(row: TunedRow) -> float | None:
    """Return the standard error of the logarithm of the median; None if the row does not say how noisy its time is."""
    if row.interval_us is not None and row.interval_us[1] > row.interval_us[0]:
        return math.log(row.interval_us[1] / row.interval_us[0]) / _WIDTH
    if row.spread_us and row.samples and row.duration_us:
        return _OF_RANGE * row.spread_us / math.sqrt(row.samples) / row.duration_us
    return None


def _corrected(changes: Sequence[Change | None]) -> list[Change | None]:
    """Return the changes with p-values corrected for their number, and with verdicts."""
    tested = sorted((change.p, place) for place, change in enumerate(changes) if change and change.p is not None)
    adjusted, largest = {}, 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        adjusted[place] = largest
    return [
        change
        if change is None or change.why
        else replace(change, p_adjusted=(q := adjusted.get(place)), verdict=_verdict(change, q))
        for place, change in enumerate(changes)
    ]


def _verdict(change: Change, p: float | None) -> str:
    assert change.ratio is not None
    assert p is not None
    if p >= SIGNIFICANT or 1 / TIE_RATIO <= change.ratio <= TIE_RATIO:
        return SAME
    return FASTER if change.ratio < 1 else SLOWER


def p_text(p: float | None) -> str:
    """Return a p-value as text: `p < 0.001`, `p = 0.02`, or `no p-value`."""
    return "no p-value" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def counted(changes: Iterable[Change | None]) -> dict[str, int]:
    """Return the number of sizes by verdict, and of those with another winner."""
    known = [change for change in changes if change is not None]
    counts = {
        verdict: sum(each.verdict == verdict for each in known) for verdict in (FASTER, SLOWER, SAME, NOT_COMPARED)
    }
    return {**counts, "another winner": sum(each.winner_changed for each in known)}
