"""`TimedSize`: a tuned size with the times of its configs; and the choice of one config for several sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem


@dataclass(frozen=True)
class TimedSize:
    """A tuned size.

    times_us: times of the configs that may be chosen, at least one
    arch: the architecture
    device: the driver's name of the device; "" if unknown
    winner: the size's winner, which was timed in the finals and checked; other configs may have been timed once
    """

    problem: GemmProblem
    times_us: Mapping[Config, float]
    arch: str
    device: str = ""
    winner: Config | None = None

    @property
    def best(self) -> Config:
        """The winner if it may be chosen, else the fastest config; ties go to the first by name."""
        if self.winner is not None and self.winner in self.times_us:
            return self.winner
        return min(self.times_us, key=lambda config: (self.times_us[config], config.name))

    @property
    def best_us(self) -> float:
        """The time of `best`, in microseconds."""
        return self.times_us[self.best]


@dataclass(frozen=True)
class Choice:
    """One config for several sizes.

    loss: geometric mean of the config's time over that of each size's best; at least 1
    sizes: the number of sizes on which the config was timed
    """

    config: Config
    loss: float
    sizes: int


def least_loss(sizes: Sequence[TimedSize]) -> Choice:
    """Return the config with the least loss among the configs that were timed on the largest number of these sizes.

    Small sizes have other candidates than large ones, so there may be no config that was timed on all.
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
