"""The search of one size: asks the strategy for units, has them compiled and measured, and tells it the outcomes.

A unit is a set of configs that share their binaries. Compile farm and profiler are queues: units are ordered with the
place at which the strategy asked for them, several at a time, and units that are ready are measured in that order.
Every call of the strategy is recorded for the journal, so that its decisions can be replayed
(`genkern.tuning.replay`).
"""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from genkern.compile.binary_groups import binary_group
from genkern.compile.candidate_builder import BuildResult, CandidateBuilder
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.records import Candidate, Measurement, Outcome, Unfit
from genkern.journal.binaries import JournalBinary
from genkern.journal.search_steps import AskStep, SearchRecord, Step, TellStep
from genkern.search.events import event_of, split_off_unfit, with_rounded_times
from genkern.search.limit import NO_LIMIT, Allowance, Limit
from genkern.search.strategies import CACHED, ZERO, ChosenStrategy
from genkern.search.strategy import (
    Compiled,
    Event,
    Measured,
    Refused,
    Strategy,
    Task,
    Unit,
    units_of,
)
from genkern.timing.profiler import Profiler

# Units in flight per compile worker. With fewer, workers would become idle; with more, the strategy would react later
# to new measurements.
AT_A_TIME = 4
_SHARE_DIGITS = 6


@dataclass(frozen=True)
class Confidence:
    """How thoroughly a size was searched.

    expected_loss: `Strategy.expected_loss`; 0 if no config was left out; None if unknown
    searched_share: share of the space's binaries that were measured or found to be no candidates; None if unknown
    """

    expected_loss: float | None = None
    searched_share: float | None = None


NOTHING_SAID = Confidence()


class SearchDriver:
    """Drives one search: asks the strategy for units, has them compiled and measured, and reports the outcomes back.

    Units with a config that is named in `first` are compiled before the units that the strategy asks for, and the
    strategy cannot ask for them. Configs in `known`, and configs that an earlier start found unfit, are not measured
    again: the strategy starts from the beginning and is told the known outcome when it asks for such a config.
    Thread-safe: the thread that measures calls `tell`, another thread may pull units that are ready.
    """

    def __init__(
        self,
        builder: CandidateBuilder,
        configs: Sequence[Config],
        chosen: ChosenStrategy,
        task: Callable[[tuple[Config, ...], Callable[[Unit], bool]], Task],
        known: Mapping[str, Measurement],
        first: Collection[str] = (),
        limit: Limit = NO_LIMIT,
        extra_configs: Callable[[Collection[str]], Sequence[Config]] = lambda measured: (),
    ) -> None:
        """Prepare the search; nothing is ordered yet.

        configs: the candidates of the problem
        chosen: makes the strategy
        task: makes the strategy's task from the configs that it may ask for and a test whether a unit is cached
        known: measurements of an earlier start. These configs are compiled again too, since they may win
        first: names of configs that are compiled and measured in any case
        limit: ends the search; binaries of `known` and `first` count too
        besides: returns configs to measure after the strategy has ended, given the names of the configs that have a
            time. The strategy is not told about them. Not called if the search has a limit, if the strategy has a
            number, or for the strategies zero and cached
        """
        self._builder = builder
        self._known = known
        self._depth = AT_A_TIME * builder.farm.jobs
        # Called in the thread that pulls units, at the end of a round: no unit is in flight and none is asked for.
        self.on_made: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        space, configs = configs, builder.worth_compiling(configs)
        self._by_name = {config.name: config for config in configs}
        # Keys of the binaries of the space, and of those that were measured or turned out to be no candidates.
        self._binaries = {binary_group(config) for config in space}
        self._tried = {binary_group(c) for c in space if c.name in known or c.name not in self._by_name}
        named = [self._by_name[name] for name in self._by_name if name in first]
        ahead = {binary_group(config) for config in named}
        theirs = tuple(config for config in space if not ahead or binary_group(config) not in ahead)
        # Configs that are named in `first` come before the other configs of their binary.
        others = (config for config in configs if ahead and binary_group(config) in ahead)
        of_before = [self._by_name[name] for name in known if name in self._by_name]
        self._ahead = units_of([*named, *others, *of_before])[::-1]
        self._limit, self._begun_s, self._is_over = limit, math.inf, False
        has_besides = limit == NO_LIMIT and chosen.number is None and chosen.name not in (ZERO, CACHED)
        self._extra_configs = extra_configs if has_besides else None
        self._measures_extras = False
        self._allowance = Allowance(limit.binaries, ahead | {binary_group(config) for config in of_before})
        # Known configs that the strategy has not requested yet.
        self._unasked = {config: None for config in of_before if binary_group(config) not in ahead}
        self._before = set(self._unasked)
        self._is_told_all = not self._before
        self._unfit = {name: why.outcome for name, why in builder.build.unfit.items() if name not in self._by_name}
        # The first place of the strategy's own units.
        self._place_of_theirs = len(self._ahead)
        self._cached: dict[object, tuple[Config, bool]] = {}
        most = None if limit.binaries is None else max(0, limit.binaries - len(ahead))
        self.task = replace(task(theirs, self._is_cached), most=most)
        self.strategy: Strategy = chosen.make(self.task)
        self._name = chosen.name
        self._steps: list[Step] = []
        # The main binary of each unit that was compiled, by the name of the unit's first config.
        self.made: dict[str, JournalBinary] = {}
        # The requested units in order. A unit's place is its index in this list. Then the place of each config, and the
        # places of units that were compiled or dropped.
        self._units: list[Unit] = []
        self._places: dict[Config, int] = {}
        self._made: set[int] = set()
        self._dropped: set[int] = set()
        self._ready: list[tuple[int, Sequence[Candidate]]] = []
        # Configs that were compiled but will not be measured.
        self._put_back: set[Config] = set()
        # Number of units that `begin` ordered.
        self._ordered_ahead = 0
        self._timed_names = {name for name, measurement in known.items() if measurement.duration_us is not None}
        self.confidence = NOTHING_SAID

    def begin(self) -> None:
        """Order the first units before measuring can start, so that they are compiled by then."""
        self._ordered_ahead = self._order_more()

    def measurements(self, profiler: Profiler) -> Iterator[Measurement]:
        """Yield the first measurement of every candidate that is not known, until the strategy asks for no more units.

        A round ends when the strategy asks for nothing until it is told the times of the candidates in flight.
        """
        rounds = 0
        with self._timed():
            while not rounds or self._asks_on() or self._asks_for_extras():
                rounds += 1
                units = _Units(self._units_ready(), self._builder)
                for measurement in map(with_rounded_times, profiler.screen(self._builder.build.session, units)):
                    self._tell_measured(measurement)
                    yield measurement
        self._measures_extras = False
        self.confidence = self._confidence()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Start the time limit, if there is one."""
        if (seconds := self._limit.seconds) is None:
            yield
            return
        self._begun_s = time.monotonic()
        # A thread that waits for a compile does not check the time, hence a timer.
        timer = threading.Timer(seconds, self._end_in_time)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end_in_time(self) -> None:
        """If the time is up and at least one config has a time, end the search: drop the strategy's units in flight."""
        with self._lock:
            is_up = time.monotonic() - self._begun_s >= (self._limit.seconds or math.inf)
            if not is_up or not self._timed_names or self._is_over:
                return
            self._is_over = True
            under_way = {*range(self._place_of_theirs, len(self._units))} - self._made
            for place in under_way | {place for place, _ in self._ready if place >= self._place_of_theirs}:
                self._drop(place)

    def _units_ready(self) -> Iterator[Sequence[Candidate]]:
        """Yield the candidates of each unit that is ready, earliest requested unit first."""
        while not self._builder.is_closed:
            asked, self._ordered_ahead = self._ordered_ahead or self._order_more(), 0
            # Take all compiled units before choosing, so that the earliest requested one comes first.
            while (built := self._builder.next_built(wait=not self._ready and not asked)) is not None:
                self._take(built)
            if (ready := self._next_ready()) is not None:
                yield ready
            elif not asked and not self._builder.in_flight:
                self.on_made()
                return

    def tell(self, event: Event) -> None:
        """Tell the strategy an event, and drop the units that it no longer wants."""
        with self._lock:
            self._tell(event)

    def left_out(self) -> dict[str, Unfit]:
        """Return, by name, why configs that were not requested, or were dropped, have no measurement."""
        ended = self._is_over or self._allowance.leaves_out
        said = f"the search ended before it (--budget {self._limit.said})" if ended else self.strategy.left_out
        why = Unfit(Outcome.PREDICTED_OUT, said)
        return {
            name: why
            for name, config in self._by_name.items()
            if not (name in self._known and name in self._builder.build.ready)
            and (self._places.get(config) not in self._made or config in self._put_back)
        }

    def searched(self) -> SearchRecord:
        """Return the steps of the search so far, for the journal."""
        task = self.task
        cached = tuple(config for config, is_cached in self._cached.values() if is_cached)
        known = task.number, task.configs, cached, tuple(self._steps), task.most
        return SearchRecord(self._name, *known)

    def _confidence(self) -> Confidence:
        share = round(len(self._tried) / max(len(self._binaries), 1), _SHARE_DIGITS)
        with self._lock:
            loss = self.strategy.expected_loss() if self.left_out() else 0.0
        return Confidence(None if loss is None else round(loss, _SHARE_DIGITS), share)

    def _asks_on(self) -> bool:
        return bool(self._order_more() or self._ready or self._builder.in_flight)

    def _asks_for_extras(self) -> bool:
        """Order the further configs once the strategy has ended; True if there are any, and only once."""
        if (extra_configs := self._extra_configs) is None or self._builder.is_closed:
            return False
        self._extra_configs, self._measures_extras = None, True
        configs = [config for config in extra_configs(self._timed_names) if config not in self._places]
        with self._lock:
            self._ahead = units_of(config for config in configs if config.name in self._by_name)[::-1]
        return self._asks_on()

    def _order_more(self) -> int:
        """Order the next units up to the limit in flight; return the number of units that were requested."""
        with self._lock:
            room = self._depth - self._builder.in_flight
            asked = [self._ahead.pop() for _ in range(min(room, len(self._ahead)))]
            if not asked and room > 0 and not (self._is_over or self._measures_extras):
                asked = self._allowance.take(room, self._ask)
            fit = [unit for unit in map(self._without_unfit, asked) if unit.configs]
            self._builder.request_binaries([(self._place_of(unit), unit.configs) for unit in fit])
            theirs = (unit for unit in fit if self._places[unit.configs[0]] >= self._place_of_theirs)
            new = (config for unit in theirs for config in unit.configs if config.name not in self._known)
            if not self._is_told_all and any(True for _ in new):
                # The strategy decides differently than in the earlier start, because events came in another order. Tell
                # it the remaining known measurements, since it may never ask for them.
                self._is_told_all = True
                for config in self._unasked:
                    self._tell(event_of(config, self._known[config.name]))
        return len(asked)

    def _without_unfit(self, unit: Unit) -> Unit:
        """Remove configs that an earlier start found unfit from a unit, and tell the strategy their outcomes."""
        fit, refused = split_off_unfit(unit, self._unfit)
        for event in refused:
            self._tell(event)
        if not fit.configs:
            self._allowance.unmeasured(unit)
        return fit

    def _ask(self, n: int) -> Sequence[Unit]:
        asked = tuple(self.strategy.ask(n))
        self._steps.append(AskStep(n, asked))
        return asked

    def _place_of(self, unit: Unit) -> int:
        """Add a requested unit and return its place.

        Raises InputError if a config of it was requested before or is not in the strategy's task.
        """
        place = len(self._units)
        for config in unit.configs:
            if place >= self._place_of_theirs and config in self._unasked:
                # The config was compiled ahead, so the strategy may still ask for it once.
                self._places[config] = place
                del self._unasked[config]
            if self._places.setdefault(config, place) != place or config.name not in self._by_name:
                why = "a second time" if config.name in self._by_name else "which is none of its task"
                raise InputError(f"the strategy {self._name} asked for {config.name}, {why}")
        self._units.append(unit)
        return place

    def _take(self, built: BuildResult) -> None:
        """Tell the strategy about a compiled unit, and queue its candidates to be measured."""
        with self._lock:
            place, unit = built.rank, self._units[built.rank]
            self._made.add(place)
            if built.binary is not None:
                self.made[unit.configs[0].name] = JournalBinary.of(built.binary)
            candidates: Sequence[Candidate] = built.candidates
            known = [self._known[each.config.name] for each in candidates if each.config.name in self._known]
            if place < self._place_of_theirs and unit.configs[0] in self._before:
                # The strategy is told later, when it asks for the unit.
                return
            if built.binary is not None and candidates:
                self._tell(Compiled(unit, built.binary.key, built.cached))
            reasons: dict[Unfit, list[Config]] = {}
            for name, why in built.unfit.items():
                reasons.setdefault(why, []).append(self._by_name[name])
            for why, configs in reasons.items():
                self._tell(Refused(unit, tuple(configs), why.outcome))
            if not candidates:
                self._tried.add(unit.compiled)
                self._allowance.unmeasured(unit)
            if known:
                candidates = [each for each in candidates if each.config.name not in self._known]
                for measurement in known:
                    self._tell(event_of(self._by_name[measurement.config], measurement))
            if candidates:
                heapq.heappush(self._ready, (place, candidates))

    def _next_ready(self) -> Sequence[Candidate] | None:
        with self._lock:
            while self._ready:
                place, candidates = heapq.heappop(self._ready)
                if place not in self._dropped:
                    self._allowance.measured(self._units[place])
                    return candidates
                self._leave(candidate.config for candidate in candidates)
            return None

    def _tell_measured(self, measurement: Measurement) -> None:
        event = event_of(self._by_name[measurement.config], measurement)
        self._tried.add(binary_group(event.config))
        self.tell(event)
        if isinstance(event, Measured):
            self._timed_names.add(measurement.config)
            if len(self._timed_names) == 1:
                self._end_in_time()

    def _tell(self, event: Event) -> None:
        if self._measures_extras:
            return
        self.strategy.tell(event)
        dropped = tuple(self.strategy.drop())
        self._steps.append(TellStep(event, dropped))
        for unit in self._allowance.forget(dropped):
            if (place := self._places.get(unit.configs[0])) is None:
                raise InputError(f"the strategy {self._name} dropped {unit.configs[0].name}, which it did not ask for")
            self._drop(place)

    def _drop(self, place: int) -> None:
        self._dropped.add(place)
        self._builder.drop(place)
        if place not in self._made or any(place == ready for ready, _ in self._ready):
            self._allowance.unmeasured(self._units[place])

    def _leave(self, configs: Iterable[Config]) -> None:
        """Mark configs as compiled but not measured."""
        for config in configs:
            self._put_back.add(config)
            self._builder.withdraw_candidate(config.name)

    def _is_cached(self, unit: Unit) -> bool:
        if (known := self._cached.get(unit.compiled)) is None:
            is_cached = unit.configs[0].name in self._unfit or self._builder.is_cached(unit.configs)
            known = self._cached[unit.compiled] = unit.configs[0], is_cached
        return known[1]


class _Units(Iterator[Sequence[Candidate]]):
    """Iterator over the units of a search that are ready, which can be cancelled."""

    def __init__(self, pull: Iterator[Sequence[Candidate]], builder: CandidateBuilder) -> None:
        self._pull = pull
        self._builder = builder
        self._has_ended = False

    def __next__(self) -> Sequence[Candidate]:
        try:
            return next(self._pull)
        except StopIteration:
            self._has_ended = True
            raise

    def cancel(self) -> None:
        """Close the builder, so that a thread that waits for the next unit returns; nothing if the iterator has
        ended.
        """
        if not self._has_ended:
            self._builder.close()
