"""Blocks: how long calls are timed where it says how fast they are.

They run at the power limit, where a call that takes less energy has a higher clock; in rounds of single samples all
contenders share one clock, that of their mean load. In a block one of them runs again and again until the clock is its
own, and what it took before that does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

# Calls that take so many microseconds run at the power limit when they are repeated (H200).
LONG_US = 40.0
# A block takes so long, and what begins in its first part does not count.
BLOCK_US, SETTLE_US = 30_000.0, 10_000.0
# A sample of a block is so long that the wait before it, some 0.1 ms without load, leaves the clock as it is.
_SAMPLE_US = 5_000.0


def are_long(call_us: float) -> bool:
    """Whether calls that take so many microseconds are timed in blocks."""
    return call_us >= LONG_US


def block_copies(copies: Sequence[int], call_us: float) -> list[int]:
    """Which copies of the weights the calls of one sample of a block use: those of a usual sample, again and again."""
    return [*copies] * max(1, round(_SAMPLE_US / (max(call_us, 1.0) * len(copies))))


def in_blocks(
    sampler: Callable[[], float], calls: int, block_us: float = BLOCK_US, settle_us: float = SETTLE_US
) -> Callable[[], float]:
    """A sampler whose samples are blocks: the median of those of `sampler` that began when the clock had settled.

    Each of these is the mean time of `calls` calls, in microseconds as all times here.
    """

    def sample() -> float:
        kept: list[float] = []
        elapsed_us = 0.0
        while not kept or elapsed_us < block_us:
            call_us = sampler()
            if elapsed_us >= settle_us:
                kept.append(call_us)
            elapsed_us += call_us * calls
        return median(kept)

    return sample
