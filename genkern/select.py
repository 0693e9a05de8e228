"""Choosing: who is timed again, and who wins. Pure functions of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genkern.config import Config
from genkern.records import Measurement, Outcome

# Two medians closer than this are the same: NVBench's compare calls centres within 0.5 % equal.
TIE_RATIO = 1.005


def finalists(screened: Iterable[Measurement], most: int) -> list[str]:
    """Names of the `most` fastest measured configs, fastest first; equal times by name."""
    measured = [m for m in screened if m.outcome is Outcome.MEASURED and m.duration_us is not None]
    measured.sort(key=lambda m: (m.duration_us, m.config))
    return [m.config for m in measured[:most]]


def ranking(finals: Iterable[Measurement]) -> list[Measurement]:
    """Measured finalists, best first: by median, but within a tie with the fastest the simpler config leads."""
    measured = [m for m in finals if m.outcome is Outcome.MEASURED and m.duration_us is not None]
    measured.sort(key=lambda m: (m.duration_us, m.config))
    if not measured:
        return []
    limit_us = (measured[0].duration_us or 0.0) * TIE_RATIO
    tied = [m for m in measured if (m.duration_us or 0.0) <= limit_us]
    tied.sort(key=lambda m: (_complexity(Config.parse(m.config)), m.duration_us, m.config))
    return tied + measured[len(tied) :]


def spread_us(samples_us: Sequence[float]) -> float:
    """Interquartile range of the samples in microseconds; 0 for fewer than four."""
    if len(samples_us) < 4:
        return 0.0
    ordered = sorted(samples_us)
    quarter = len(ordered) // 4
    return ordered[-1 - quarter] - ordered[quarter]


def _complexity(config: Config) -> tuple[int, int, int, int]:
    """Fewer kernels, then less shared memory, fewer threads and a plainer tile order."""
    return (config.SPLIT_K, config.num_stages, config.num_warps, config.GROUP_SIZE_M)
