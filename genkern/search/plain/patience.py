"""The strategy patience:N: four binaries of each form, then all others, until N binaries in a row are no faster.

Both parts are in the cost model's order. A form is a family with given values of the parameters that change a kernel's
text.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.kernels.catalogue import form_of
from genkern.search.predict import promising_first
from genkern.search.strategy import Compiled, Event, Measured, Refused, Strategy, Task, Unit, units_of

# Number of binaries of each form that are tried before all others, since the cost model may be wrong about a whole
# form. Replayed on 12 unfriendly bf16 sizes (H200; benchmarks/README.md) with a patience of 192, the search takes
# 35.0 % of the binaries, instead of 34.6 % without this rule, and loses nothing with or without it. With 8 binaries of
# each form, a patience of 160 loses 4.7 % on one size.
_OF_EACH_FORM = 4


def forms_first(configs: Sequence[Config]) -> list[Config]:
    """Return `configs` with those of the first four binaries of each form in front; both parts keep their order."""
    binaries: dict[str, set[Hashable]] = defaultdict(set)
    ahead, behind = [], []
    for config in configs:
        these, binary = binaries[form_of(config).stem], compiled_of(config)
        if binary in these or len(these) < _OF_EACH_FORM:
            these.add(binary)
            ahead.append(config)
        else:
            behind.append(config)
    return [*ahead, *behind]


class Patience:
    """Counts the binaries that were measured, or could not be, since the best time was last beaten.

    most: the search ends after this many binaries in a row that were no faster; 0: never
    best_us: the best time known beforehand in microseconds, or None

    Configs that share a binary count once, since they differ only in GROUP_SIZE_M or SPLIT_K.
    """

    def __init__(self, most: int, best_us: float | None = None) -> None:
        self._most = most
        self._best_us = math.inf if best_us is None else best_us
        self._in_vain: set[str] = set()

    def ends(self, binary: str, duration_us: float | None) -> bool:
        """Record the time of a config with this binary (None: not timed); return whether the search ends."""
        if duration_us is not None and duration_us < self._best_us:
            self._best_us = duration_us
            self._in_vain.clear()
        else:
            self._in_vain.add(binary)
        return 0 < self._most <= len(self._in_vain)


class PatientSearch(Strategy):
    """Asks for units in the order of `forms_first`, until N binaries in a row brought nothing faster. Then it drops the
    units that have no result yet.

    A cached unit is held back until all compiles of the units before it in the order could have ended: until as many
    compiles have ended as uncached units precede it. Otherwise unpromising units that happen to be in the cache would
    be measured early and use up the patience.
    """

    left_out = "so many in a row that promised more brought nothing faster (patience)"

    def __init__(self, task: Task) -> None:
        self._is_cached = task.is_cached
        self._left = deque(units_of(forms_first(promising_first(task.problem, task.configs, task.gpu))))
        self._patience = Patience(task.number or 0, task.best_us)
        # Cached units that are held back, each with the number of compiles that must end before it is asked for.
        self._behind: deque[tuple[int, Unit]] = deque()
        self._missing = self._made = 0
        self._under_way: set[Hashable] = set()
        self._binary: dict[Hashable, str] = {}
        # Units that were asked for and of which no config was measured yet.
        self._waiting: dict[Hashable, Unit] = {}
        self._is_over = False

    def ask(self, n: int) -> Sequence[Unit]:
        asked: list[Unit] = []
        while len(asked) < n and not self._is_over:
            if self._behind and self._behind[0][0] <= self._made:
                asked.append(self._behind.popleft()[1])
            elif not self._left:
                break
            else:
                unit = self._left.popleft()
                if self._is_cached(unit) and self._missing:
                    self._behind.append((self._missing, unit))
                    continue
                asked.append(unit)
                if not self._is_cached(unit):
                    self._missing += 1
                    self._under_way.add(unit.compiled)
        self._waiting |= {unit.compiled: unit for unit in asked}
        return asked

    def tell(self, event: Event) -> None:
        if isinstance(event, Compiled | Refused):
            if isinstance(event, Compiled):
                self._binary[event.unit.compiled] = event.binary
            if event.unit.compiled in self._under_way:
                self._under_way.remove(event.unit.compiled)
                self._made += 1
        else:
            compiled = compiled_of(event.config)
            self._waiting.pop(compiled, None)
            duration_us = event.duration_us if isinstance(event, Measured) else None
            # No binary is known if an earlier start measured the config and this start could not compile it again.
            if (binary := self._binary.get(compiled)) is not None:
                self._is_over |= self._patience.ends(binary, duration_us)

    def drop(self) -> Sequence[Unit]:
        if not self._is_over:
            return ()
        dropped, self._waiting = list(self._waiting.values()), {}
        return dropped


strategy = PatientSearch
