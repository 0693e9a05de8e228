"""The strategies predicted[:N] and exhaustive: all units, or the first N units, in the order of predicted times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from genkern.search.guided.learned import Learned
from genkern.search.guided.model import learned_of, ranked
from genkern.search.strategy import Strategy, Task, Unit, units_of


class PredictedOrder(Strategy):
    """Asks for every unit once, or for the first N in predicted order; cached units come before all others.

    A compile takes as long as many launches, so cached units are measured while the others are compiled.
    """

    left_out = "so many promised more (predicted:N)"

    def __init__(self, task: Task, learned: Callable[[str], Learned | None] = learned_of) -> None:
        units = units_of(ranked(task.problem, task.configs, task.gpu, learned))
        self._is_cached = task.is_cached
        self._left = deque(units[: task.number])
        self._missing: deque[Unit] = deque()

    def ask(self, n: int) -> Sequence[Unit]:
        asked: list[Unit] = []
        while len(asked) < n and self._left:
            unit = self._left.popleft()
            (asked if self._is_cached(unit) else self._missing).append(unit)
        while len(asked) < n and self._missing:
            asked.append(self._missing.popleft())
        return asked


strategy = PredictedOrder
