"""The strategy random[:SEED]: everything, in an order drawn from the seed, which says what an order is worth."""

from __future__ import annotations

import random
from collections.abc import Sequence

from genkern.search.strategy import Strategy, Task, Unit, units_of


class RandomOrder(Strategy):
    """Asks for every unit once, in an order that seed and space alone decide: the cache has no say in it."""

    def __init__(self, task: Task) -> None:
        # Sorted first, so that the order in which a space lists its configs has no say either.
        self._left = sorted(units_of(task.configs), key=lambda unit: unit.configs[0].name)
        random.Random(task.number or 0).shuffle(self._left)

    def ask(self, n: int) -> Sequence[Unit]:
        return [self._left.pop() for _ in range(min(n, len(self._left)))]


strategy = RandomOrder
