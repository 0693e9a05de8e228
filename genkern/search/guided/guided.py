"""The default strategy, guided: measures the model's first choices, then what the corrected model expects to be better.

The first batch has the model's best binaries, the best binary of several forms (called kinds here), since the model may
be wrong about a form, and the binaries that are most similar to the winners of the nearest tuned sizes. Each later
batch has the binaries with the largest expected gain, given the errors that the model has shown at this size
(`posterior`), until the largest gain is below a fixed share of the best time, or a fixed number of binaries was tried.
Then a few binaries around the best one are tried. Last, the best binaries are launched with the other values of
GROUP_SIZE_M.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.gemm.records import Outcome
from genkern.kernels.catalogue import form_of
from genkern.search.guided.features import Numbers
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import Prior, learned_of
from genkern.search.guided.model_rows import Rows
from genkern.search.guided.posterior import Posterior, expected_gain
from genkern.search.strategy import Compiled, Event, Measured, Refused, Strategy, Task, Unit

# Binaries of the first batch, with a learned model and with the cost model alone: the number of the model's best, and
# the number of kinds whose best is added; _NEAR is the number for each winner of a near size. On 168 recorded sizes
# (20, 12) lost 0.06 % (0.07 % by the times of the finals) after 44 binaries, (16, 8) 0.09 % (0.13 %) after 42
# (2026-11-27). With the cost model alone, more kinds than 14 do not help.
_LEARNED_FIRST, _PREDICTED_FIRST, _NEAR = (20, 12), (8, 14), 2
# Size of a later batch, and the number of binaries without a result at which the next batch is chosen: a batch that is
# chosen later uses more measurements, but the farm must not become idle.
_BATCH, _WAITING = 4, 8
# Smallest and largest number of binaries that are tried. The smallest one holds even if no gain is expected, since the
# model is corrected with the first times.
_LEAST, _MOST = 28, 96
# Number of refused binaries that do not count as tries. If more are refused, something else is wrong.
_FREE = 256
# Once the smallest number of binaries is tried, no further batch is chosen if the largest expected gain is below this
# share of the best time.
_PROMISE = 0.003
# If there is nothing left to ask for and _TIMED configs have times, binaries under way whose expected gain is below
# _VAIN are dropped, since the run would otherwise wait for the slowest compiles. On 168 recorded sizes with 16 compiles
# at a time this lost 0.089 % after 42.9 binaries in three quarters of the time of a run that dropped nothing (0.089 %
# after 45.5); dropping while there is more to ask for lost 0.10 to 0.12 %.
_VAIN, _TIMED = 0.0005, 28
# The expected loss of a search is this many times the largest expected gain of a binary that was left out. On the
# recorded sizes (H200 and H100, 2026-11-27; by models that were trained without them, `genkern train --folds 8`) the
# expected loss is 0.17 % in the mean, the actual loss 0.06 %.
_TOGETHER = 2.0
# When no gain is expected any more, up to _AROUND further binaries around the best one are tried: their block sizes,
# warps and stages differ by at most _STEP octaves in total. This is repeated if another binary becomes the best. On 104
# recorded sizes it lowered the mean loss from 0.24 % to 0.14 %, with two more binaries per size (2026-11-26).
_AROUND, _STEP = 4, 1.0
# Number of best rows (binary and SPLIT_K) whose other values of GROUP_SIZE_M are tried.
_REFINED = 20
# Largest number of rows that crashed or timed out and are tried with other values of GROUP_SIZE_M. It is small because
# a crash takes seconds.
_MOST_LOST = 4
_ENDED_BADLY = (Outcome.CRASHED, Outcome.TIMED_OUT)


class Guided(Strategy):
    """Asks for binaries by their expected gain, then for the other values of GROUP_SIZE_M of the best ones."""

    left_out = "by the model and the times of this size it promised nothing"

    def __init__(self, task: Task, learned: Callable[[str], Learned | None] = learned_of) -> None:
        self._rows = Rows(task.configs)
        if self._rows.configs:
            prior = Prior(task.problem, self._rows.configs, task.gpu, learned)
            self._posterior = Posterior(prior.octaves, prior.alike, self._rows.kind)
            self._of_model, self._of_kinds = _LEARNED_FIRST if prior.is_learned else _PREDICTED_FIRST
        self._task = task
        self._wanted: deque[Unit] = deque()
        self._asked: set[int] = set()
        self._unanswered: dict[Config, Hashable] = {}
        self._waiting: dict[Hashable, int] = {}
        self._under_way: dict[Hashable, Unit] = {}
        # Whether a config was measured since the last `drop`; whether the last `_next` chose no binary.
        self._has_news = self._wants_none = False
        self._octaves: dict[Config, float] = {}
        self._lost: set[int] = set()
        # Number of refused units: since the beginning, and since the last measured time.
        self._refused = self._in_vain = 0
        self._best = math.inf if task.best_us is None else math.log2(task.best_us)
        self._is_refined = not self._rows.configs
        self._looked_around: int | None = None
        self._gain = 0.0
        # Units that an earlier start tried count too, though only their number and best time are known.
        self._least = max(0, _LEAST - task.tried)
        self._most = max(0, _MOST - task.tried) if task.most is None else min(_MOST, task.most)

    def ask(self, n: int) -> Sequence[Unit]:
        self._think()
        units = [self._wanted.popleft() for _ in range(min(n, len(self._wanted)))]
        for unit in units:
            self._under_way[unit.compiled] = unit
            self._waiting[unit.compiled] = len(unit.configs)
            self._unanswered |= dict.fromkeys(unit.configs, unit.compiled)
        return units

    def tell(self, event: Event) -> None:
        if isinstance(event, Compiled):
            return
        if isinstance(event, Refused):
            self._answered(event.configs)
            if len(event.configs) == len(event.unit.configs):
                self._refused += 1
                self._in_vain += 1
            return
        self._answered([event.config])
        row = self._rows.place.get(event.config)
        if isinstance(event, Measured):
            is_new = event.config not in self._octaves
            octaves = self._octaves[event.config] = math.log2(event.duration_us)
            self._best = min(self._best, octaves)
            self._in_vain = 0
            self._has_news = True
            if is_new and row is not None:
                self._posterior.add(row, octaves)
        elif row is not None and event.outcome in _ENDED_BADLY:
            self._lost.add(row)

    def drop(self) -> Sequence[Unit]:
        if not (self._has_news and self._waiting) or self._is_refined or len(self._octaves) < _TIMED:
            return ()
        self._has_news = False
        self._think()
        if not self._wants_none:
            return ()
        gain = expected_gain(self._best, *self._posterior.predicted())
        vain = [unit for compiled in self._waiting if self._is_vain(unit := self._under_way[compiled], gain)]
        for unit in vain:
            self._answered(unit.configs)
        return vain

    def _is_vain(self, unit: Unit, gain: Numbers) -> bool:
        """Return True if no config of the unit has a time, and the expected gain of each is not worth waiting for."""
        least = math.log2(1.0 + _VAIN)
        return all(config not in self._octaves and gain[self._rows.place[config]] < least for config in unit.configs)

    def expected_loss(self) -> float | None:
        return _TOGETHER * (2.0**self._gain - 1.0) if self._octaves else None

    def _answered(self, configs: Iterable[Config]) -> None:
        for config in configs:
            if (compiled := self._unanswered.pop(config, None)) is not None:
                self._waiting[compiled] -= 1
                if not self._waiting[compiled]:
                    del self._waiting[compiled], self._under_way[compiled]

    def _think(self) -> None:
        if not self._wanted and len(self._waiting) <= _WAITING:
            self._wanted = deque(self._next())

    def _next(self) -> list[Unit]:
        """Return the next units; an empty list while units under way must be awaited first, and at the end."""
        if self._is_refined:
            return []
        chosen = self._first() if not self._asked else self._promising()
        chosen = [number for number in dict.fromkeys(chosen) if number not in self._asked]
        chosen = chosen[: self._most - self._tried]
        self._asked.update(chosen)
        if not chosen:
            # Units under way are not awaited: slow compiles are seldom the best. If one is, `_around` is called again.
            chosen = self._around()
            self._asked.update(chosen)
        self._wants_none = not chosen
        if chosen or self._waiting:
            return [self._rows.first_of(number) for number in chosen]
        self._is_refined = True
        return self._refined()

    def _first(self) -> list[int]:
        mean, _ = self._posterior.predicted()
        ranked = self._ranked(mean)
        of_kind: dict[int, int] = {}
        for number in ranked:
            of_kind.setdefault(int(self._rows.kind[self._rows.of_unit[number][0]]), number)
        near = [number for config in self._task.near for number in self._nearest(config)]
        return [*ranked[: self._of_model], *list(of_kind.values())[: self._of_kinds], *near]

    def _promising(self) -> list[int]:
        if not self._octaves:
            # No config was measured so far, so no gain is known.
            return self._ranked(self._posterior.predicted()[0])[: _BATCH + self._in_vain]
        gain = expected_gain(self._best, *self._posterior.predicted())
        gain[np.isin(self._rows.unit, list(self._asked))] = 0.0
        self._gain = float(gain.max())
        if self._gain < math.log2(1.0 + _PROMISE) and self._tried >= self._least:
            return []
        chosen = self._unlike(gain, _BATCH)
        if not self._in_vain:
            return chosen
        # If units are refused (by another compiler, or for lack of resources), their expected gains mean nothing: the
        # batch grows, so that it reaches other kinds.
        return list(dict.fromkeys([*chosen, *self._ranked(-gain)]))[: _BATCH + self._in_vain]

    def _unlike(self, gain: Numbers, most: int) -> list[int]:
        """Return the numbers of up to `most` units with the largest gains, choosing one after the other.

        Each choice lowers the gains of rows whose errors are correlated with its own, since its time will tell about
        them too. On 104 recorded sizes batches without this took five more binaries (2026-11-27).
        """
        left, chosen = gain.copy(), []
        for _ in range(most):
            row = int(left.argmax())
            if left[row] <= 0.0:
                break
            number = int(self._rows.unit[row])
            chosen.append(number)
            left *= 1.0 - self._posterior.correlated(row) ** 2
            left[self._rows.of_unit[number]] = 0.0
        return chosen

    def _around(self) -> list[int]:
        """Return up to `_AROUND` units of the best config's form whose shapes are within `_STEP` octaves of its shape.

        The list is empty if this was done for the same unit before. A neighbour may be slightly better although the
        model expects no gain from it.
        """
        measured = [config for config in self._octaves if config in self._rows.place]
        best = min(measured, key=lambda config: self._octaves[config], default=None)
        if best is None or self._looked_around == (number := int(self._rows.unit[self._rows.place[best]])):
            return []
        self._looked_around = number
        stem = form_of(best).stem
        mean, _ = self._posterior.predicted()
        near = [
            other
            for other in self._ranked(mean)
            if form_of(config := self._rows.units[other].configs[0]).stem == stem and _octaves(best, config) <= _STEP
        ]
        return near[: min(_AROUND, self._most - self._tried)]

    @property
    def _tried(self) -> int:
        return len(self._asked) - min(self._refused, _FREE)

    def _ranked(self, octaves: Numbers) -> list[int]:
        """Return the numbers of the units that were not asked for, ordered by the least value of their rows."""
        least = np.full(len(self._rows.units), math.inf)
        np.minimum.at(least, self._rows.unit, octaves)
        order = np.argsort(least, kind="stable").tolist()
        return [number for number in order if number not in self._asked]

    def _nearest(self, config: Config) -> list[int]:
        """Return the `_NEAR` units of the config's form whose shapes are nearest to its shape, nearest first."""
        stem = form_of(config).stem
        apart = [
            (_octaves(config, unit.configs[0]), number)
            for number, unit in enumerate(self._rows.units)
            if form_of(unit.configs[0]).stem == stem
        ]
        return [number for _, number in sorted(apart)[:_NEAR]]

    def _refined(self) -> list[Unit]:
        """Return units of the best rows with their other values of GROUP_SIZE_M, one unit per binary."""
        measured = [config for config in self._octaves if config in self._rows.place]
        best = sorted(measured, key=lambda config: self._octaves[config])[:_REFINED]
        more: dict[Hashable, list[Config]] = {}
        for config in best:
            if others := self._rows.others[self._rows.place[config]]:
                more.setdefault(compiled_of(config), []).extend(others)
        for row in self._worth_another():
            more.setdefault(compiled_of(self._rows.configs[row]), []).extend(self._rows.others[row])
        return [Unit(tuple(configs)) for configs in more.values()]

    def _worth_another(self) -> list[int]:
        """Return up to `_MOST_LOST` rows whose config with the usual GROUP_SIZE_M crashed or timed out.

        The rows that are predicted fastest come first. Once there are times, only rows with a large enough expected
        gain are returned.
        """
        rows = [row for row in self._lost if self._rows.others[row] and self._rows.configs[row] not in self._octaves]
        if not rows:
            return []
        mean, deviation = self._posterior.predicted()
        if self._octaves:
            gain = expected_gain(self._best, mean, deviation)
            rows = [row for row in rows if gain[row] >= math.log2(1.0 + _PROMISE)]
        return sorted(rows, key=lambda row: (float(mean[row]), row))[:_MOST_LOST]


def _octaves(one: Config, other: Config) -> float:
    """Return the distance of two shapes: the sum of |log2| of the ratios of block sizes, warps and stages."""
    pairs = zip(_shape(one), _shape(other), strict=True)
    return sum(abs(math.log2(max(1, mine) / max(1, its))) for mine, its in pairs)


def _shape(config: Config) -> tuple[int, ...]:
    return config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, config.num_warps, config.num_stages


strategy = Guided
