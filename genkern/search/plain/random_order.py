"""The strategy random[:SEED]: all units in a random order, a baseline for strategies that order them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from genkern.search.strategy import Strategy, Task, Unit, units_of


class RandomOrder(Strategy):
    """Asks for every unit once, in an order that depends only on the seed and the space, not on the cache."""

    def __init__(self, task: Task) -> None:
        # Sorted first, so that the order in which the space lists its configs does not matter.
        self._left = sorted(units_of(task.configs), key=lambda unit: unit.configs[0].name)
        random.Random(task.number or 0).shuffle(self._left)

    def ask(self, n: int) -> Sequence[Unit]:
        return [self._left.pop() for _ in range(min(n, len(self._left)))]


strategy = RandomOrder
