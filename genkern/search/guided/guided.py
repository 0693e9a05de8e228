"""The default strategy, guided: measures the model's first choices, then what the corrected model expects to be faster.

The first batch has the model's best binaries and the best binary of several forms (called kinds here), since the model
may be wrong about a form. Each later batch has the binaries with the largest expected gain, given the errors that the
model has shown at this size (`posterior`), until the largest gain is below a fixed share of the best time, or a fixed
number of binaries was tried. Last, the best binaries are launched with the other values of GROUP_SIZE_M.

docs/measurement.md shows what each part is worth on recorded sizes, and which others were tried and dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from genkern.compile.binary_groups import binary_group
from genkern.gemm.config import Config
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import Prior, learned_of
from genkern.search.guided.model_rows import Rows
from genkern.search.guided.posterior import Posterior, expected_gain
from genkern.search.strategy import Compiled, Event, Measured, Refused, Strategy, Task, Unit

# Binaries of the first batch: the number of the model's best, and the number of kinds whose best is added.
_FIRST, _KINDS = 20, 12
# Size of a later batch, and the number of binaries without a result at which the next batch is chosen: a batch that is
# chosen later uses more measurements, but the farm must not become idle.
_BATCH, _WAITING = 4, 8
# Largest number of binaries that are tried, without the first _FREE refused ones. If more are refused, something else
# is wrong.
_MOST, _FREE = 96, 256
# The search stops if the largest expected gain is below this share of the best time and as many binaries were tried as
# the first batch may have: refused ones tell nothing.
_PROMISE = 0.003
# Once the search asks for no more, binaries under way whose expected gain is below this share are dropped. Without this
# the search waits for the slowest compiles, and takes 4 to 18 % longer on recorded sizes.
_VAIN = 0.0005
# The expected loss of a search is this many times the largest expected gain of a binary that was left out.
_TOGETHER = 2.0
# Number of best rows (binary and SPLIT_K) whose other values of GROUP_SIZE_M are tried.
_REFINED = 20


class Guided(Strategy):
    """Asks for binaries by their expected gain, then for the other values of GROUP_SIZE_M of the best ones."""

    left_out = "by the model and the times of this size it promised nothing"

    def __init__(self, task: Task, learned: Callable[[str], Learned | None] = learned_of) -> None:
        self._rows = Rows(task.configs)
        if self._rows.configs:
            prior = Prior(task.problem, self._rows.configs, task.gpu, learned)
            self._posterior = Posterior(prior.octaves, prior.alike, self._rows.kind)
        self._most = _MOST if task.most is None else min(_MOST, task.most)
        self._chosen: deque[Unit] = deque()
        self._asked: set[int] = set()
        self._refused = 0
        # Units with configs without a result, and these configs, by the key of their binary.
        self._in_flight: dict[Hashable, tuple[Unit, set[Config]]] = {}
        self._octaves: dict[Config, float] = {}
        self._best, self._gain = math.inf, 0.0
        # Whether nothing was worth asking for when it last chose; whether other values of GROUP_SIZE_M were asked for.
        self._wants_none, self._is_refined = False, not self._rows.configs

    def ask(self, n: int) -> Sequence[Unit]:
        self._think()
        units = [self._chosen.popleft() for _ in range(min(n, len(self._chosen)))]
        self._in_flight |= {unit.compiled: (unit, set(unit.configs)) for unit in units}
        return units

    def tell(self, event: Event) -> None:
        if isinstance(event, Compiled):
            return
        if isinstance(event, Refused):
            self._refused += len(event.configs) == len(event.unit.configs)
            self._answered(event.configs)
            return
        self._answered([event.config])
        if isinstance(event, Measured):
            octaves, row = math.log2(event.duration_us), self._rows.place.get(event.config)
            if row is not None and event.config not in self._octaves:
                self._posterior.add(row, octaves)
            self._octaves[event.config] = octaves
            self._best = min(self._best, octaves)

    def drop(self) -> Sequence[Unit]:
        if not self._in_flight or len(self._octaves) < _FIRST + _KINDS:
            return ()
        self._think()
        if self._is_refined or not self._wants_none:
            return ()
        gain, least = expected_gain(self._best, *self._posterior.predicted()), math.log2(1.0 + _VAIN)
        vain = [
            unit
            for unit, waiting in self._in_flight.values()
            if len(waiting) == len(unit.configs) and all(gain[self._rows.place[config]] < least for config in waiting)
        ]
        for unit in vain:
            self._answered(unit.configs)
        return vain

    def expected_loss(self) -> float | None:
        return _TOGETHER * (2.0**self._gain - 1.0) if self._octaves else None

    def _answered(self, configs: Iterable[Config]) -> None:
        for config in configs:
            if (waits := self._in_flight.get(compiled := binary_group(config))) is not None:
                waits[1].discard(config)
                if not waits[1]:
                    del self._in_flight[compiled]

    def _think(self) -> None:
        if not self._chosen and len(self._in_flight) <= _WAITING and not self._is_refined:
            self._chosen.extend(self._next())

    def _next(self) -> list[Unit]:
        """Return the next units; an empty list while units under way must be awaited first."""
        numbers = self._promising() if self._asked else self._first()
        numbers = numbers[: max(0, self._most - self._tried)]
        self._wants_none = not numbers
        if numbers or self._in_flight:
            self._asked.update(numbers)
            return [self._rows.first_of(number) for number in numbers]
        self._is_refined = True
        return self._refined()

    @property
    def _tried(self) -> int:
        return len(self._asked) - min(self._refused, _FREE)

    def _first(self) -> list[int]:
        ranked = self._ranked()
        of_kind: dict[int, int] = {}
        for number in ranked:
            of_kind.setdefault(int(self._rows.kind[self._rows.of_unit[number][0]]), number)
        return list(dict.fromkeys([*ranked[:_FIRST], *list(of_kind.values())[:_KINDS]]))

    def _ranked(self) -> list[int]:
        """Return the numbers of the units that were not asked for, in the model's order."""
        mean, _ = self._posterior.predicted()
        least = np.full(len(self._rows.units), math.inf)
        np.minimum.at(least, self._rows.unit, mean)
        return [number for number in np.argsort(least, kind="stable").tolist() if number not in self._asked]

    def _promising(self) -> list[int]:
        """Return the units with the largest expected gains, choosing one after the other.

        Each choice lowers the gains of rows whose errors are correlated with its own, since its time will tell about
        them too.
        """
        if not self._octaves:
            # No config was measured so far, so no gain is known.
            return self._ranked()[:_BATCH]
        gain = expected_gain(self._best, *self._posterior.predicted())
        gain[np.isin(self._rows.unit, list(self._asked))] = 0.0
        self._gain = float(gain.max())
        chosen: list[int] = []
        if self._gain < math.log2(1.0 + _PROMISE) and self._tried >= _FIRST + _KINDS:
            return chosen
        while len(chosen) < _BATCH and gain.any():
            row = int(gain.argmax())
            number = int(self._rows.unit[row])
            chosen.append(number)
            gain *= 1.0 - self._posterior.correlated(row) ** 2
            gain[self._rows.of_unit[number]] = 0.0
        return chosen

    def _refined(self) -> list[Unit]:
        """Return units of the best rows with their other values of GROUP_SIZE_M, one unit per binary."""
        measured = [config for config in self._octaves if config in self._rows.place]
        more: dict[Hashable, list[Config]] = {}
        for config in sorted(measured, key=self._octaves.__getitem__)[:_REFINED]:
            if others := self._rows.others[self._rows.place[config]]:
                more.setdefault(binary_group(config), []).extend(others)
        return [Unit(tuple(configs)) for configs in more.values()]


strategy = Guided
