"""Simulation of a search, without compiling or measuring, on a problem of which every config was recorded.

As in `genkern.tuning.search_driver`, several units are in flight at a time. A farm compiles them in the order in which
they were requested, and one measured process measures the units that are ready, in that order. The cache is empty at
the start. The times of compiles and measurements are the recorded ones, or estimates from them (`AssumedCosts`). The
simulated clock does not include the start of processes, the strategy's own computing (`own_s`), and the finals.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.records import Outcome
from genkern.recorded.assumed_costs import AssumedCosts, assumed_costs_of
from genkern.recorded.problem import RecordedProblem
from genkern.search.limit import NO_LIMIT, Allowance, Limit
from genkern.search.screening import SCREENING
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Compiled, Event, Lost, Measured, Refused, Task, Unit
from genkern.timing.session import Screening
from genkern.tuning.search_driver import AT_A_TIME

# Default number of compile workers, as on the machines of the documents' figures.
JOBS = 16
_REFUSED = (Outcome.COMPILE_FAILED, Outcome.COMPILE_TIMED_OUT, Outcome.OVER_RESOURCES, Outcome.IDENTICAL)


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulated search.

    asked: the units that the strategy requested, in order
    compiled: number of units that were compiled
    measured: the configs that were timed
    seconds: simulated time of the last measurement
    best: the fastest measured config whose output is right; None without any
    loss: by which share `best` is slower than the fastest recorded config, by first measurements
    final_loss: the same by times of the finals, among the measured configs that took part in them
    own_s: seconds that the strategy itself computed on this machine
    expected_loss: the loss that the strategy expects
    """

    asked: tuple[Unit, ...]
    compiled: int
    measured: tuple[Config, ...]
    seconds: float
    best: Config | None
    loss: float | None
    final_loss: float | None
    own_s: float
    expected_loss: float | None


def simulate(
    chosen: ChosenStrategy,
    recorded: RecordedProblem,
    *,
    jobs: int = JOBS,
    costs: AssumedCosts | None = None,
    limit: Limit = NO_LIMIT,
    at_a_time: int = AT_A_TIME,
) -> SimulationResult:
    """Let a strategy search a recorded problem, with `at_a_time` units in flight for each of `jobs` workers.

    When `limit` is reached, units in flight are dropped, and the unit that is being measured is measured to its end.
    Configs that a measured process would skip by itself (`SCREENING`) are skipped, unless the strategy wants every
    config. Raises InputError if the strategy asks for units that it must not ask for.
    """
    simulation = _Simulation(chosen, recorded, costs or assumed_costs_of([recorded]), limit)
    return simulation.run(_Farm(jobs), at_a_time * jobs)


@dataclass
class _Farm:
    """Simulated workers that compile in the order of requests. Two requests for the same binary share one compile.

    `in_flight` are the places of units that were ordered and are neither compiled nor dropped.
    """

    jobs: int
    orders: deque[tuple[Hashable, float]] = field(default_factory=deque)
    waiting: dict[Hashable, list[int]] = field(default_factory=dict)
    # Heap of (end of the compile, unique number, binary).
    compiling: list[tuple[float, int, Hashable]] = field(default_factory=list)
    made: set[Hashable] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    begun: int = 0

    def order(self, place: int, what: Hashable, seconds: float) -> None:
        self.in_flight.add(place)
        if what not in self.waiting:
            self.waiting[what] = []
            self.orders.append((what, seconds))
        self.waiting[what].append(place)

    def drop(self, place: int) -> None:
        self.in_flight.discard(place)

    def begin(self, now_s: float) -> None:
        """Give idle workers the next compiles."""
        while self.orders and len(self.compiling) < self.jobs:
            what, seconds = self.orders.popleft()
            if self.in_flight.isdisjoint(self.waiting[what]):
                del self.waiting[what]
                continue
            self.begun += 1
            heapq.heappush(self.compiling, (now_s + seconds, self.begun, what))

    @property
    def next_s(self) -> float:
        """Return the time at which the next compile ends; infinity if no unit is in flight."""
        return self.compiling[0][0] if self.compiling and self.in_flight else math.inf

    def take(self) -> list[int]:
        """Finish the next compile; return the places of its units that were not dropped."""
        _, _, what = heapq.heappop(self.compiling)
        self.made.add(what)
        places = [place for place in self.waiting.pop(what) if place in self.in_flight]
        self.in_flight.difference_update(places)
        return places


class _Simulation:
    def __init__(self, chosen: ChosenStrategy, recorded: RecordedProblem, costs: AssumedCosts, limit: Limit) -> None:
        self._name, self._every, self._recorded, self._charges = chosen.name, chosen.every, recorded, costs
        self._screening = Screening() if chosen.every else SCREENING
        self._outcomes = dict(zip(recorded.configs, recorded.outcomes, strict=True))
        self._allowance, self._end_s = Allowance(limit.binaries, ()), limit.seconds or math.inf
        self._now_s = self._own_s = 0.0
        task = Task(recorded.problem, recorded.gpu, recorded.configs, lambda unit: False, chosen.number)
        task = replace(task, most=limit.binaries)
        with self._thinking():
            self._strategy = chosen.make(task)
        self._units: list[Unit] = []
        self._places: dict[Config, int] = {}
        self._ready: list[int] = []
        self._dropped: set[int] = set()
        self._refused: set[Config] = set()
        self._first_copy: dict[Config, Config] = {}
        # The configs that the measured process has, and the time at which the first of them is measured.
        self._measuring: deque[Config] = deque()
        self._measured_s = math.inf
        self._measured: list[Config] = []
        self._is_over = False
        self._best_us = math.inf
        self._first_us: dict[Config, float] = {}

    def run(self, farm: _Farm, depth: int) -> SimulationResult:
        while True:
            has_asked = self._ask(farm, depth - len(farm.in_flight))
            farm.begin(self._now_s)
            self._launch()
            if self._measured and min(farm.next_s, self._measured_s) > self._end_s:
                self._now_s, self._end_s, self._is_over = max(self._now_s, self._end_s), math.inf, True
                for place in [*farm.in_flight, *self._ready]:
                    self._drop(place, farm)
            # At equal times the compile comes first, since its unit may precede the other ready units.
            if farm.next_s <= self._measured_s:
                if farm.next_s == math.inf and has_asked:
                    # All requested units were refused at once, because their binaries were compiled before.
                    continue
                if farm.next_s == math.inf:
                    return self._result(farm.begun)
                self._now_s = farm.next_s
                for place in farm.take():
                    self._make(place, farm, cached=False)
            else:
                self._now_s = self._measured_s
                self._finish(farm)

    def _ask(self, farm: _Farm, room: int) -> bool:
        """Ask the strategy for units and order them; False if it asks for none."""
        if room <= 0 or self._is_over:
            return False
        with self._thinking():
            asked = self._allowance.take(room, self._strategy.ask)
        for unit in asked:
            place = len(self._units)
            for config in unit.configs:
                if self._places.setdefault(config, place) != place or config not in self._outcomes:
                    why = "a second time" if config in self._outcomes else "which is none of its task"
                    raise InputError(f"the strategy {self._name} asked for {config.name}, {why}")
            self._units.append(unit)
            if unit.compiled in farm.made:
                self._make(place, farm, cached=True)
            else:
                farm.order(place, unit.compiled, self._charges.of_compile_s(self._recorded, unit))
        return bool(asked)

    def _make(self, place: int, farm: _Farm, *, cached: bool) -> None:
        """Tell the strategy about a compiled unit, and queue its candidates to be measured."""
        unit = self._units[place]
        refused: dict[Outcome, list[Config]] = {}
        for config in unit.configs:
            if (why := self._refusal(config)) is not None:
                refused.setdefault(why, []).append(config)
                self._refused.add(config)
        if sum(map(len, refused.values())) < len(unit.configs):
            heapq.heappush(self._ready, place)
            binary = self._recorded.binaries.get(unit.configs[0]) or f"of unit {place}"
            self._tell(Compiled(unit, binary, cached), farm)
        for outcome, configs in refused.items():
            self._tell(Refused(unit, tuple(configs), outcome), farm)
        if place not in self._ready:
            self._allowance.unmeasured(unit)

    def _refusal(self, config: Config) -> Outcome | None:
        """Return why a compiled config is no candidate, as a `CandidateBuilder` decides it; None if it is measured.

        Of configs with equal machine code the one that is compiled first is measured, as in a run.
        """
        original = self._original(config)
        if self._outcomes[original] in _REFUSED and original not in self._recorded.took_ms:
            # The config has no measuring time, so the measured process never had it. (A device may also refuse a config
            # for lack of resources, after the measured process has tried it.)
            return self._outcomes[original]
        first = self._first_copy.setdefault(original, config)
        return None if first == config or self._every else Outcome.IDENTICAL

    def _original(self, config: Config) -> Config:
        return self._recorded.copies.get(config, config)

    def _launch(self) -> None:
        """If the measured process is idle, give it all configs of the earliest requested unit that is ready."""
        while not self._measuring and self._ready:
            place = heapq.heappop(self._ready)
            configs = [config for config in self._units[place].configs if config not in self._refused]
            if place not in self._dropped:
                self._allowance.measured(self._units[place])
                self._measuring.extend(configs)
                continue
            for config in configs:
                # The config is not measured, so an identical config may be measured instead.
                self._first_copy.pop(self._original(config), None)
        if self._measuring and self._measured_s == math.inf:
            config = self._measuring[0]
            taken_s = self._charges.of_measurement_s(self._recorded, self._original(config))
            self._measured_s = self._now_s + (0.0 if self._is_left_out(config) else taken_s)

    def _is_left_out(self, config: Config) -> bool:
        if self._screening.sibling_factor is None:
            return False
        first_us = self._first_us.get(config.with_values(GROUP_SIZE_M=1), 0.0)
        return self._screening.leaves_siblings(first_us, self._best_us)

    def _finish(self, farm: _Farm) -> None:
        config, self._measured_s = self._measuring.popleft(), math.inf
        us, outcome = self._recorded.us.get(self._original(config)), self._outcomes[self._original(config)]
        if self._is_left_out(config):
            self._tell(Lost(config, Outcome.PREDICTED_OUT), farm)
        elif us is None or outcome is not Outcome.MEASURED:
            self._tell(Lost(config, outcome), farm)
        else:
            self._measured.append(config)
            self._best_us = min(self._best_us, us)
            if self._screening.sibling_factor is not None:
                self._first_us.setdefault(config.with_values(GROUP_SIZE_M=1), us)
            self._tell(Measured(config, us), farm)

    def _tell(self, event: Event, farm: _Farm) -> None:
        with self._thinking():
            self._strategy.tell(event)
            dropped = list(self._strategy.drop())
        for unit in self._allowance.forget(dropped):
            if (place := self._places.get(unit.configs[0])) is None:
                raise InputError(f"the strategy {self._name} dropped {unit.configs[0].name}, which it did not ask for")
            self._drop(place, farm)

    def _drop(self, place: int, farm: _Farm) -> None:
        self._dropped.add(place)
        if place in farm.in_flight or place in self._ready:
            self._allowance.unmeasured(self._units[place])
        farm.drop(place)

    @contextmanager
    def _thinking(self) -> Iterator[None]:
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self._own_s += time.perf_counter() - started_s

    def _result(self, compiled: int) -> SimulationResult:
        recorded = self._recorded
        right = {self._original(config): config for config in self._measured}
        right = {original: config for original, config in right.items() if original not in recorded.wrong}
        best = min(right, key=lambda config: recorded.us[config], default=None)
        left_out = self._dropped or self._allowance.leaves_out or len(self._places) < len(recorded.configs)
        return SimulationResult(
            asked=tuple(self._units),
            compiled=compiled,
            measured=tuple(self._measured),
            seconds=self._now_s,
            best=None if best is None else right[best],
            loss=_loss(right, recorded.us, recorded.wrong),
            final_loss=_loss(right, recorded.final_us, recorded.wrong),
            own_s=self._own_s,
            expected_loss=self._strategy.expected_loss() if left_out else 0.0,
        )


def _loss(found: Iterable[Config], us: dict[Config, float], wrong: frozenset[Config]) -> float | None:
    """Return by how much the best of `found` is slower than the best right config (0.01: 1 %); None without a time."""
    best_us = min((us[config] for config in found if config in us), default=None)
    return None if best_us is None else best_us / min(us[config] for config in us if config not in wrong) - 1
