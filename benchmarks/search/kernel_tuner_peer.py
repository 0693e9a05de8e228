"""Kernel Tuner's strategies as ours: `pip install kernel-tuner` (1.5.0), a peer on recorded spaces.

A strategy of Kernel Tuner calls a runner, which measures; ours is asked and told. So it runs in a thread of its own,
and one of both waits for the other: a batch that it has its runner measure is what is asked for next, and its runner
returns when all of that was told. A point of its space is a unit: of each parameter that tells units apart the place
of its value among all values. What it takes is the best time of the unit's configs. Seeds are its own, so that it
decides the same from the same events.
"""

from __future__ import annotations

import importlib
import math
import queue
import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from genkern.compile.binary_groups import binary_group
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.parameter import PARAMETERS
from genkern.search.strategy import Event, Lost, MakesStrategy, Measured, Refused, Strategy, Task, Unit, units_of

Point = tuple[int, ...]
# The two that its authors found best on GEMM and other kernels (arXiv 2510.17899), and the best of the older ones.
STRATEGIES = {
    "adaptive_tabu_greywolf": "gen_adaptive_tabu_greywolf",
    "hybrid_vndx": "gen_hybrid_vndx",
    "genetic_algorithm": "genetic_algorithm",
}
# In a small space a strategy may go on for minutes with points that it knows before it draws the last of the others.
_MOST_IN_VAIN = 200


def kernel_tuner(name: str, most: int, seed: int = 0) -> MakesStrategy:
    """The strategy of this name, with its own defaults, that evaluates up to `most` units.

    Raises InputError where Kernel Tuner is not installed.
    """
    try:
        module = importlib.import_module(f"kernel_tuner.strategies.{STRATEGIES[name]}")
    except ImportError as error:
        raise InputError(f"Kernel Tuner is not installed ({error}): pip install kernel-tuner") from None
    return lambda task: KernelTunerSearch(module, task, most, seed)


def points_of(units: Sequence[Unit]) -> tuple[dict[str, list[int]], list[Point]]:
    """The parameters that tell the units apart, each with the places of its values, and the point of each unit."""
    said = [_values(unit.configs[0]) for unit in units]
    values = {name: sorted({each[name] for each in said}, key=_in_order) for name in said[0]}
    varying = {name: {value: place for place, value in enumerate(of)} for name, of in values.items() if len(of) > 1}
    parameters = {name: list(places.values()) for name, places in varying.items()} or {"only": [0]}
    return parameters, [tuple(of[each[name]] for name, of in varying.items()) or (0,) for each in said]


def _in_order(value: Any) -> tuple[str, Any]:
    return type(value).__name__, value


def _values(config: Config) -> dict[str, Any]:
    """What is compiled in: whether K is split, and all else but what is set at run time."""
    of = {each.name: getattr(config, each.name) for each in PARAMETERS.all if not each.at_run_time}
    return {"family": config.family, "splits": config.SPLIT_K > 1, **of}


class KernelTunerSearch(Strategy):
    """Asks for what Kernel Tuner's strategy wants measured, one batch after another."""

    left_out = "Kernel Tuner's strategy did not ask for it"

    def __init__(self, module: Any, task: Task, most: int, seed: int) -> None:
        units = units_of(task.configs)
        parameters, points = points_of(units)
        self._unit = dict(zip(points, units, strict=True))
        self._asked: list[Unit] = []
        # Of each unit under way its configs of which nothing was told, and the best time so far.
        self._waiting: dict[Point, set[Config]] = {}
        self._best_us: dict[Point, float] = {}
        self._point = {unit.compiled: point for point, unit in self._unit.items()}
        self._turns = _Turns(module, parameters, points, min(most, len(units)), seed)
        self._begin(self._turns.first())

    def ask(self, n: int) -> Sequence[Unit]:
        asked, self._asked = self._asked[:n], self._asked[n:]
        return asked

    def tell(self, event: Event) -> None:
        if isinstance(event, Refused):
            self._end(event.unit.compiled, event.configs)
        elif isinstance(event, Measured | Lost):
            us = event.duration_us if isinstance(event, Measured) else math.inf
            if (point := self._point.get(binary_group(event.config))) in self._waiting:
                self._best_us[point] = min(self._best_us[point], us)
            self._end(binary_group(event.config), (event.config,))

    def _begin(self, batch: Sequence[Point]) -> None:
        self._asked = [self._unit[point] for point in batch]
        self._waiting = {point: set(self._unit[point].configs) for point in batch}
        self._best_us = dict.fromkeys(batch, math.inf)

    def _end(self, compiled: object, configs: Sequence[Config]) -> None:
        point = self._point.get(compiled)
        if point not in self._waiting:
            return
        self._waiting[point].difference_update(configs)
        if not self._waiting[point]:
            del self._waiting[point]
        if not self._waiting and not self._asked:
            self._begin(self._turns.next(self._best_us))


class _Turns:
    """The thread of a strategy of Kernel Tuner: it runs while `first` or `next` waits for its batch, and never else."""

    def __init__(
        self, module: Any, parameters: dict[str, list[int]], points: Sequence[Point], most: int, seed: int
    ) -> None:
        from kernel_tuner.interface import Options
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.util import TuningBudget

        names = list(parameters)
        recorded = {",".join(map(str, point)): dict(zip(names, point, strict=True)) for point in points}
        space = Searchspace(None, None, None, from_cache={"tune_params": parameters, "cache": recorded})
        options = {
            "strategy_options": Options({"max_fevals": most}),
            "objective": ["time"],
            "objective_higher_is_better": [False],
            "budget": TuningBudget(None, most),
            "verbose": False,
            "tune_params": parameters,
            "restrictions": None,
        }
        self._run = lambda: module.tune(space, _Runner(self, names), Options(options))
        self._batches: queue.SimpleQueue[list[Point] | Exception] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[dict[Point, float]] = queue.SimpleQueue()
        self._random: tuple[Any, Any] = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self.known: dict[Point, float] = {}

    def first(self) -> Sequence[Point]:
        """Its first batch; none where it wants nothing measured."""
        return self._turn(threading.Thread(target=self._work, daemon=True).start)

    def next(self, us: dict[Point, float]) -> Sequence[Point]:
        """The next batch, with the times of the last: none when it has ended. Raises what it raised."""
        self.known |= us
        return self._turn(lambda: self._answers.put(us))

    def _turn(self, begin: Any) -> Sequence[Point]:
        # It draws from the generators that everybody shares.
        outside = random.getstate(), np.random.get_state()
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        try:
            begin()
            batch = self._batches.get()
        finally:
            self._random = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])
        if isinstance(batch, Exception):
            raise batch
        return batch

    def measure(self, batch: list[Point]) -> None:
        """In the strategy's thread: have these measured, and wait for it."""
        if batch:
            self._batches.put(batch)
            self._answers.get()

    def _work(self) -> None:
        try:
            self._run()
            self._batches.put([])
        except Exception as error:  # handed to whoever waits for the batch
            self._batches.put(error)


class _Runner:
    """What a strategy of Kernel Tuner has its points measured by."""

    def __init__(self, turns: _Turns, names: Sequence[str]) -> None:
        self._turns, self._names = turns, names
        self._in_vain = 0

    def add_strategy_time(self, seconds: float) -> None:
        """Nobody asks for it."""

    def available_parallelism(self) -> int:
        return 1

    def run(self, batch: Sequence[Sequence[int]], tuning_options: Any) -> list[dict[str, Any] | None]:
        """A result a point, as Kernel Tuner's own runners give it; None for those beyond the budget."""
        from kernel_tuner.util import RuntimeFailedConfig, StopCriterionReached

        points = [tuple(map(int, point)) for point in batch]
        known, budget = self._turns.known, tuning_options.budget
        new: list[Point] = []
        for point in points:
            if point not in known and point not in new and not budget.is_done():
                new.append(point)
                budget.add_evaluations(1)
        self._in_vain = 0 if new else self._in_vain + 1
        if self._in_vain > _MOST_IN_VAIN:
            raise StopCriterionReached("it asks for nothing new any more")
        self._turns.measure(new)
        results: list[dict[str, Any] | None] = []
        for point in points:
            if (us := known.get(point)) is None:
                results.append(None)
                continue
            error = {} if us < math.inf else {"__error__": RuntimeFailedConfig()}
            results.append({**dict(zip(self._names, point, strict=True)), "time": us, **error})
        return results
