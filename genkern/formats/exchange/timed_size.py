"""TimedSize: a tuned size with the times of its configs, and which config costs several sizes least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem


@dataclass(frozen=True)
class TimedSize:
    """`times_us` has the configs that may be chosen, one at least; `device` is its driver's name, "" if nobody says."""

    problem: GemmProblem
    times_us: Mapping[Config, float]
    arch: str
    device: str = ""

    @property
    def best(self) -> Config:
        """The fastest config; of equals the first by name."""
        return min(self.times_us, key=lambda config: (self.times_us[config], config.name))


@dataclass(frozen=True)
class Choice:
    """One config for several sizes. `loss` is the geometric mean of its time over that of each size's best, from 1 on.

    None where no config was timed on all of them: then it is the best of the largest size.
    """

    config: Config
    loss: float | None


def least_loss(sizes: Sequence[TimedSize]) -> Choice:
    """The config that costs these sizes, of which there is one at least, the least on (geometric) average."""
    common = set.intersection(*(set(size.times_us) for size in sizes))
    if not common:
        return Choice(max(sizes, key=lambda size: size.problem.flops).best, None)
    losses = {config: _loss(config, sizes) for config in common}
    config = min(common, key=lambda config: (losses[config], config.name))
    return Choice(config, losses[config])


def _loss(config: Config, sizes: Sequence[TimedSize]) -> float:
    return math.exp(sum(math.log(size.times_us[config] / size.times_us[size.best]) for size in sizes) / len(sizes))
