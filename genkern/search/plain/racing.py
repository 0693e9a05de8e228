"""The strategy racing: two units of each form, then ever more units of the forms whose best time is near the best.

A form is a family with given values of the parameters that change a kernel's text.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from genkern.kernels.catalogue import form_of
from genkern.search.predict import promising_first
from genkern.search.strategy import Event, Lost, Measured, Refused, Strategy, Task, Unit, units_of

# Units of each form in the first heat; each later heat has twice as many per remaining form as the heat before. On 80
# recorded sizes (H200, 2026-11-26; `genkern replay`) a search takes 85 units and loses 1.06 % in the mean; with 4 units
# 126 and 1.01 %; with 6 units 165 and 0.87 %. A margin of 1.0 takes more units and loses as much.
_FIRST = 2
# A form remains if its best time exceeds the best time of all forms by at most this share. The share is halved after
# each heat.
_MARGIN = 0.5


class Racing(Strategy):
    """Searches in heats, similar to successive halving.

    A heat begins when every config of the heat before has a result. From the second heat on, the search ends after a
    heat that brought nothing faster.
    """

    left_out = "its form was not near the best, or more of it brought nothing faster (racing)"

    def __init__(self, task: Task) -> None:
        self._forms: dict[str, deque[Unit]] = defaultdict(deque)
        for unit in units_of(promising_first(task.problem, task.configs, task.gpu)):
            self._forms[form_of(unit.configs[0]).stem].append(unit)
        self._best_us: dict[str, float] = defaultdict(lambda: math.inf)
        self._all_us = self._before_us = math.inf if task.best_us is None else task.best_us
        self._each, self._margin = _FIRST, _MARGIN
        self._heat: deque[Unit] = deque(self._next_of(self._forms))
        # Configs of this heat without a result.
        self._waiting = {config for unit in self._heat for config in unit.configs}

    def ask(self, n: int) -> Sequence[Unit]:
        if not self._waiting:
            self._begin()
        return [self._heat.popleft() for _ in range(min(n, len(self._heat)))]

    def tell(self, event: Event) -> None:
        if isinstance(event, Refused):
            self._waiting.difference_update(event.configs)
        elif isinstance(event, Measured | Lost):
            self._waiting.discard(event.config)
        if isinstance(event, Measured):
            form = form_of(event.config).stem
            self._best_us[form] = min(self._best_us[form], event.duration_us)
            self._all_us = min(self._all_us, event.duration_us)

    def _begin(self) -> None:
        if self._each > _FIRST and self._all_us >= self._before_us:
            return
        near_us = (1 + self._margin) * self._all_us
        self._before_us, self._each, self._margin = self._all_us, 2 * self._each, self._margin / 2
        self._heat.extend(self._next_of([form for form in self._forms if self._best_us[form] <= near_us]))
        self._waiting = {config for unit in self._heat for config in unit.configs}

    def _next_of(self, forms: Iterable[str]) -> list[Unit]:
        """Return the next `_each` units of each form: the first unit of every form, then the second, and so on."""
        units: list[Unit] = []
        for _ in range(self._each):
            units += [self._forms[form].popleft() for form in forms if self._forms[form]]
        return units


strategy = Racing
