"""Comparison with older results: verdicts and p-values."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import BEST, FIT

from genkern.formats.tuned_row import TunedRow
from genkern.gemm.problem import GemmProblem
from genkern.results_report.changes import changes_of
from genkern.results_report.record import Change


def row(m: int, us: float, half: float = 0.002, **changes: object) -> TunedRow:
    made = TunedRow(GemmProblem(m, 64, 64), BEST, us, "sm_90", "NVIDIA H200", "cudagraph")
    return replace(made, interval_us=(us * (1 - half), us * (1 + half)), vendor_us=20.0, **changes)  # type: ignore[arg-type]


def only(new: TunedRow, old: TunedRow) -> Change:
    (change,), gone = changes_of([new], [old])
    assert change is not None
    assert gone == []
    return change


def test_the_p_value_is_that_of_a_z_test_of_logarithms() -> None:
    change = only(row(1, 10.05), row(1, 10.0))
    error = math.log(1.002 / 0.998) / (2 * 1.959964) * math.sqrt(2)
    assert change.p == pytest.approx(2 * NormalDist().cdf(-math.log(1.005) / error), rel=1e-6)


@pytest.mark.parametrize(
    ("us", "half", "verdict"),
    [
        (9.0, 0.002, "faster"),
        (11.0, 0.002, "slower"),
        (10.0, 0.002, "no clear change"),
        (11.0, 0.2, "no clear change"),  # noise hides it
        (10.03, 0.00001, "no clear change"),  # certain, and no more than a tie
    ],
)
def test_a_change_is_one_that_noise_does_not_explain(us: float, half: float, verdict: str) -> None:
    assert only(row(1, us, half), row(1, 10.0, half)).verdict == verdict


@given(st.lists(st.floats(9.9, 10.1), min_size=1, max_size=60))
def test_p_values_are_corrected_for_their_number(times: list[float]) -> None:
    """Holm's: never below the plain value, in the same order, and at most the plain value times the number."""
    changes, _ = changes_of(
        [row(m + 1, us) for m, us in enumerate(times)], [row(m + 1, 10.0) for m in range(len(times))]
    )
    pairs = sorted(
        (change.p, change.p_adjusted)
        for change in changes
        if change and change.p is not None and change.p_adjusted is not None
    )
    assert len(pairs) == len(times)
    assert all(p <= adjusted <= min(1.0, p * len(times)) + 1e-12 for p, adjusted in pairs)
    assert [adjusted for _, adjusted in pairs] == sorted(adjusted for _, adjusted in pairs)


def test_noise_alone_rarely_gives_a_verdict() -> None:
    """Of 400 pairs of equal kernels, measured with the error that their intervals state, none or one is told apart."""
    from random import Random

    draw = Random(7)
    error = 0.01 / 1.96
    new = [row(m, 10 * math.exp(draw.gauss(0, error)), 0.01) for m in range(1, 401)]
    old = [row(m, 10 * math.exp(draw.gauss(0, error)), 0.01) for m in range(1, 401)]
    changes, _ = changes_of(new, old)
    assert sum(change is not None and change.verdict != "no clear change" for change in changes) <= 1


def test_without_noise_figures_nothing_is_decided() -> None:
    new = replace(row(1, 5.0), interval_us=None)
    change = only(new, row(1, 10.0))
    assert (change.verdict, change.ratio, change.p) == ("not compared", 0.5, None)
    assert "how noisy" in change.why


def test_the_spread_stands_in_for_an_interval() -> None:
    new = replace(row(1, 10.5), interval_us=None, spread_us=0.1, samples=60)
    assert only(new, row(1, 10.0)).verdict == "slower"


def test_rows_are_compared_on_their_own_device_first() -> None:
    other = replace(row(1, 30.0), device="NVIDIA H100")
    assert only(row(1, 10.0), row(1, 12.0)).old_us == 12.0
    changes, _ = changes_of([row(1, 10.0)], [other, row(1, 12.0)])
    assert changes[0] is not None
    assert changes[0].old_us == 12.0
    assert only(row(1, 10.0), other).old_device == "NVIDIA H100"


def test_other_winners_and_missing_sizes_are_told() -> None:
    changes, gone = changes_of([row(1, 10.0), row(2, 10.0)], [row(1, 10.0, config=FIT[0]), row(3, 10.0)])
    assert changes[0] is not None
    assert changes[0].winner_changed
    assert changes[1] is None
    assert [problem.M for problem in gone] == [3]
    assert changes[0].library_ratio == 1.0
