"""Tests of genkern/timing/statistics.py."""

from __future__ import annotations

import random
import statistics as reference

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.timing.statistics import Estimate, compare, estimate, is_beaten, is_tie, relative_spread, stop_reason

times = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=70)


@given(times)
def test_an_estimate_brackets_its_median(samples: list[float]) -> None:
    """The median is the samples' own, and lies in its interval, which lies in the samples' range."""
    found = estimate(samples)
    assert found.median_us == reference.median(samples)
    assert min(samples) <= found.low_us <= found.median_us <= found.high_us <= max(samples)


@given(times, st.randoms(use_true_random=False))
def test_an_estimate_does_not_depend_on_order_or_moment(samples: list[float], shuffle: random.Random) -> None:
    """Equal samples give an equal interval, in any order, again and again."""
    again = list(samples)
    shuffle.shuffle(again)
    assert estimate(samples) == estimate(again)


@pytest.mark.parametrize("count", [1, 2, 5, 10, 11, 60])
def test_intervals_are_those_of_plain_resampling(count: int) -> None:
    """The interval is what drawing 20,000 resamples with replacement gives, to a few percent of the samples' range."""
    draw = random.Random(count)
    samples = [100 + draw.gauss(0, 1) for _ in range(count)]
    medians = sorted(reference.median(draw.choices(samples, k=count)) for _ in range(20_000 // max(1, count // 10)))
    low, high = medians[round(0.025 * len(medians))], medians[round(0.975 * len(medians)) - 1]
    found = estimate(samples)
    tolerance = 0.06 * (max(samples) - min(samples))
    assert found.low_us == pytest.approx(low, abs=tolerance)
    assert found.high_us == pytest.approx(high, abs=tolerance)


@pytest.mark.parametrize("count", [10, 15, 40])
def test_intervals_hold_the_true_median_as_often_as_they_say(count: int) -> None:
    """Of 400 experiments with skewed noise, 91 % to 99 % of the intervals hold the true median."""
    draw = random.Random(7)
    held = 0
    for _ in range(400):
        found = estimate([100 * draw.lognormvariate(0, 0.02) for _ in range(count)])
        held += found.low_us <= 100 <= found.high_us
    assert 0.91 <= held / 400 <= 0.99


def test_spread_is_the_deviation_without_outliers() -> None:
    """On normal samples it is the relative standard deviation; single outliers do not move it."""
    draw = random.Random(5)
    samples = [100 + draw.gauss(0, 2) for _ in range(2000)]
    assert relative_spread(samples) == pytest.approx(0.02, rel=0.1)
    assert relative_spread([*samples, 1e6, 1e6]) == pytest.approx(0.02, rel=0.1)
    assert relative_spread([5.0] * 8) == 0
    assert relative_spread([1.0, 2.0, 3.0]) == float("inf")


def test_overlapping_intervals_or_close_medians_tie() -> None:
    """Overlapping intervals tie, and medians within 0.5 % tie whatever their intervals; others do not."""
    a = Estimate(100, 99.9, 100.1)
    assert is_tie(a, Estimate(102, 100.05, 103))
    assert is_tie(a, Estimate(100.4, 100.3, 100.5))
    assert not is_tie(a, Estimate(100.6, 100.5, 100.7))
    assert is_tie(Estimate(100.4, 100.3, 100.5), a)
    assert not is_tie(Estimate(100.6, 100.5, 100.7), a)


def test_only_a_clear_gap_is_beaten() -> None:
    """Beaten means that the whole interval is more than 3 % above the leader's, not just the median."""
    leader = Estimate(100, 99, 101)
    assert not is_beaten(Estimate(110, 104, 115), leader)
    assert is_beaten(Estimate(110, 104.1, 115), leader)
    assert not is_beaten(leader, leader)


def _noisy(center: float, noise: float, count: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [center * (1 + draw.gauss(0, noise)) for _ in range(count)]


def test_rounds_end_when_the_winner_is_clear() -> None:
    """A fastest one with which nobody is tied needs no more rounds, whatever the noise of the others."""
    assert stop_reason({"a": _noisy(100, 0.01, 12, 1), "b": _noisy(120, 0.05, 12, 2)}, []) == "separated"
    assert stop_reason({"a": [100.0]}, []) == "separated"


def test_rounds_end_when_noise_is_low() -> None:
    """Two that are tied and spread less than 0.5 % will not be told apart; noise of one beaten does not matter."""
    samples = {"a": _noisy(100, 0.001, 12, 1), "b": _noisy(100.05, 0.001, 12, 2), "c": _noisy(200, 0.2, 12, 3)}
    assert stop_reason(samples, []) == "quiet"


def test_rounds_go_on_while_noise_hides_the_winner() -> None:
    """Tied and noisy: go on, until the noise has not moved for 32 rounds."""
    samples = {"a": _noisy(100, 0.02, 40, 1), "b": _noisy(100.5, 0.02, 40, 2)}
    assert stop_reason(samples, []) == ""
    assert stop_reason(samples, [0.02] * 31) == ""
    assert stop_reason(samples, [0.2] * 8 + [0.02] * 32) == "settled"
    assert stop_reason(samples, [0.02 * (1 + i / 40) for i in range(40)]) == ""
    assert stop_reason(samples, [float("inf")] * 3 + [0.02] * 32) == "settled"
    assert stop_reason(samples, [float("inf")] * 3 + [0.02] * 31) == ""


def test_samples_of_the_same_rounds_are_compared_round_by_round() -> None:
    """What moves both tells nothing; where one is the faster by turns, or there are few rounds, nobody can say."""
    drift = [100 + 5 * (i % 7) for i in range(30)]
    assert is_tie(estimate(drift), estimate([1.01 * each for each in drift]))
    assert compare(drift, [1.01 * each for each in drift]) == -1
    assert compare([1.01 * each for each in drift], drift[:20]) == 1
    assert compare(drift, [1.004 * each for each in drift]) == 0
    assert compare(drift, [(1.02 if i % 2 else 0.98) * each for i, each in enumerate(drift)]) == 0
    assert compare(drift[:4], [1.01 * each for each in drift[:4]]) == 0
    assert compare([100.0] * 4, [102.0] * 4) == -1
