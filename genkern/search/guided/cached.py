"""The strategy cached[:N]: all units that need no compile, or the first N of them, in predicted order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from genkern.search.guided.model import ranked
from genkern.search.strategy import Strategy, Task, Unit, units_of


class Cached(Strategy):
    """Asks only for units whose binaries are in the cache: all of them, or the first N in predicted order.

    It is for machines that do not compile, with a cache that another machine has filled.
    """

    left_out = "it was not compiled before (cached)"

    def __init__(self, task: Task) -> None:
        units = units_of(ranked(task.problem, task.configs, task.gpu))
        self._left = deque([unit for unit in units if task.is_cached(unit)][: task.number])

    def ask(self, n: int) -> Sequence[Unit]:
        return [self._left.popleft() for _ in range(min(n, len(self._left)))]


strategy = Cached
