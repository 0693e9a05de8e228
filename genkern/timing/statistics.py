"""Statistics of samples: the median and its interval, ties, and when to stop sampling.

Medians are used because minima choose worse on devices whose clock varies. Intervals are percentile bootstrap intervals
of the median. The stopping rules follow NVBench's `stdrel` criterion (noise is low, or has stopped falling); NVBench's
`compare` treats two times as equal if their centres are within 0.5 %. Its `entropy` criterion is not used, since it
would have ended no recorded race earlier (docs/history.md).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, pstdev

CONFIDENCE = 0.95
RESAMPLES = 1000
# Two medians within this ratio are equal.
TIE_RATIO = 1.005
# With fewer rounds than this, samples are not compared round by round.
_FEWEST_ROUNDS = 5
# A candidate whose whole interval is above the leader's by this factor drops out.
BEATEN_RATIO = 1.03
# Relative spread below which more samples would not change the result.
_QUIET = 0.005
# The spread has settled if it varied by less than this share over `_SETTLED_ROUNDS` rounds.
_SETTLED = 0.05
_SETTLED_ROUNDS = 32
# Interquartile range of a normal distribution, in standard deviations.
_IQR_SIGMAS = 1.349
_SEED = 20


@dataclass(frozen=True)
class Estimate:
    """The median of some samples and its interval, in microseconds; `low_us <= median_us <= high_us`."""

    median_us: float
    low_us: float
    high_us: float


def estimate(samples_us: Sequence[float]) -> Estimate:
    """Return the median of at least one sample with its 95 % percentile bootstrap interval (1000 resamples).

    Resampling is seeded: equal samples give equal intervals on every machine. A single sample gives an interval of zero
    width, which does not describe its noise.
    """
    ordered = sorted(samples_us)
    medians = sorted((ordered[low] + ordered[high]) / 2 for low, high in _middle_ranks(len(ordered)))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    middle = median(ordered)
    return Estimate(middle, min(medians[tail], middle), max(medians[-1 - tail], middle))


@lru_cache(maxsize=256)
def _middle_ranks(count: int) -> tuple[tuple[int, int], ...]:
    """Return, for each resample of `count` sorted values, the ranks of the two values whose mean is its median.

    A resample draws `count` uniform numbers and takes the values at those shares of the ranks. Its median needs only
    the middle order statistics of uniform numbers, which are beta distributed: two draws instead of `count`, and none
    for a count seen before.
    """
    draw = random.Random(_SEED).betavariate
    lower = (count + 1) // 2
    ranks = []
    for _ in range(RESAMPLES):
        first = second = draw(lower, count - lower + 1)
        if count % 2 == 0:
            # Given the lower one, the next is the smallest of `count - lower` uniform numbers above it.
            second = first + (1 - first) * draw(1, count - lower)
        ranks.append((min(count - 1, int(first * count)), min(count - 1, int(second * count))))
    return tuple(ranks)


def relative_spread(samples_us: Sequence[float]) -> float:
    """Return the standard deviation, estimated by the interquartile range, over the median.

    Returns infinity for fewer than four samples.
    """
    if len(samples_us) < 4:
        return float("inf")
    ordered = sorted(samples_us)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / _IQR_SIGMAS / median(ordered)


def is_tie(a: Estimate, b: Estimate) -> bool:
    """Return True if neither is clearly faster: the intervals overlap, or the medians are within 0.5 %."""
    overlap = a.low_us <= b.high_us and b.low_us <= a.high_us
    return overlap or max(a.median_us, b.median_us) <= min(a.median_us, b.median_us) * TIE_RATIO


def compare(a_us: Sequence[float], b_us: Sequence[float]) -> int:
    """Return -1 if `a` is faster, 1 if `b` is, 0 if neither is clearly faster.

    Samples are from the same rounds, in order, and are compared by their ratio in each round, because a varying clock
    widens both intervals alike. Neither is clearly faster if the interval of the median ratio contains 1, or if the
    median ratio is within 0.5 % of 1. With few rounds, `tied` decides.
    """
    rounds = min(len(a_us), len(b_us))
    if rounds < _FEWEST_ROUNDS:
        a, b = estimate(a_us), estimate(b_us)
        return 0 if is_tie(a, b) else -1 if a.median_us < b.median_us else 1
    ratios = [a / b for a, b in zip(a_us, b_us, strict=False)]
    known, middle = estimate(ratios), median(ratios)
    if known.low_us <= 1 <= known.high_us or 1 / TIE_RATIO <= middle <= TIE_RATIO:
        return 0
    return -1 if middle < 1 else 1


def is_beaten(candidate: Estimate, leader: Estimate) -> bool:
    """Return True if the candidate's whole interval is more than 3 % above the leader's."""
    return candidate.low_us > leader.high_us * BEATEN_RATIO


def stop_reason(samples_us: Mapping[str, Sequence[float]], spreads: Sequence[float]) -> str:
    """Return why the candidates with these samples need no further round, or "".

    "separated": no candidate is tied with the fastest. "quiet": the fastest and those tied with it spread less than 0.5
    %. "settled": `spreads`, the relative spread after each round so far, has varied by less than 5 % over 32 rounds.
    """
    estimates = {name: estimate(samples) for name, samples in samples_us.items()}
    leader = min(estimates, key=lambda name: estimates[name].median_us)
    rivals = [name for name in estimates if name != leader and is_tie(estimates[name], estimates[leader])]
    if not rivals:
        return "separated"
    if max(relative_spread(samples_us[name]) for name in (leader, *rivals)) < _QUIET:
        return "quiet"
    recent = spreads[-_SETTLED_ROUNDS:]
    known = len(recent) == _SETTLED_ROUNDS and max(recent) < float("inf")
    return "settled" if known and pstdev(recent) < _SETTLED * fmean(recent) else ""
