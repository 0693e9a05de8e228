"""TimedSize: a tuned size with the times of its configs, and which config costs several sizes least."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem


@dataclass(frozen=True)
class TimedSize:
    """`times_us` has the configs that may be chosen, one at least; `device` is its driver's name, "" if nobody says.

    `winner` is what won the size, which was timed in the finals and checked; others may have been timed once.
    """

    problem: GemmProblem
    times_us: Mapping[Config, float]
    arch: str
    device: str = ""
    winner: Config | None = None

    @property
    def best(self) -> Config:
        """The winner where it may be chosen, else the fastest config; of equals the first by name."""
        if self.winner is not None and self.winner in self.times_us:
            return self.winner
        return min(self.times_us, key=lambda config: (self.times_us[config], config.name))

    @property
    def best_us(self) -> float:
        """The time of `best`."""
        return self.times_us[self.best]


@dataclass(frozen=True)
class Choice:
    """One config for several sizes. `loss` is the geometric mean, from 1 on, of its time over that of each size's best,
    over the `sizes` on which it was timed.
    """

    config: Config
    loss: float
    sizes: int


def least_loss(sizes: Sequence[TimedSize]) -> Choice:
    """Of the configs that were timed on the most of these sizes (one at least), the one that costs least.

    Small sizes have other candidates than large ones, so there may be none that was timed on all.
    """
    bests = [size.best_us for size in sizes]
    losses: dict[Config, list[float]] = {}
    for size, best_us in zip(sizes, bests, strict=True):
        for config, us in size.times_us.items():
            # A time of the screening may be below that of the finals.
            losses.setdefault(config, []).append(max(0.0, math.log(us / best_us)))
    won = Counter(size.best for size in sizes)
    config = min(losses, key=lambda c: (-len(losses[c]), sum(losses[c]), -won[c], c.name))
    found = losses[config]
    return Choice(config, math.exp(sum(found) / len(found)), len(found))
