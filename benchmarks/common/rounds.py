"""Rounds in which contenders are timed in turns, and the time that a benchmark has for all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

Item = TypeVar("Item")
WARM_UP_ROUNDS, WARM_UP_S = 3, 0.05


class Limit:
    """So many seconds from the start of a benchmark: what is under way then is ended, and nothing more begun."""

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end_s = now() + limit_s

    @property
    def is_over(self) -> bool:
        return self._now() >= self._end_s

    def until(self, items: Sequence[Item]) -> Iterator[Item]:
        """The items one by one, until the time is over."""
        for item in items:
            if self.is_over:
                return
            yield item


def alternate(
    samplers: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0, now: Callable[[], float] = time.monotonic
) -> dict[str, float]:
    """The median of `rounds` samples of each, in rounds that have one of each in shuffled order.

    Rounds before them, WARM_UP_ROUNDS at least and WARM_UP_S long, let the clock settle, and are not counted.
    """
    found: dict[str, list[float]] = {name: [] for name in samplers}
    order, shuffle = list(samplers), random.Random(seed)
    started_s, warm = now(), 0
    while warm < WARM_UP_ROUNDS or now() - started_s < WARM_UP_S:
        for name in order:
            samplers[name]()
        warm += 1
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            found[name].append(samplers[name]())
    return {name: median(samples) for name, samples in found.items()}
