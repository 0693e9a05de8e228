"""Tests of genkern/tuning/search_driver.py: what a strategy wants is made and measured in its order, and it is told
of it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from small_gemms import target_of

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.candidate_builder import CandidateBuilder
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.errors import InputError, OutputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Candidate, Measurement, Outcome, Resources, Unfit
from genkern.journal.search_steps import AskStep, TellStep, parse_search, search_value
from genkern.profiling.candidate_feed import CandidateFeed
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Compiled, Event, Lost, Measured, Refused, Strategy, Task, Unit, units_of
from genkern.timing.profiler import ExclusiveDevice
from genkern.timing.session import Budget, Session
from genkern.tuning.search_driver import Confidence, SearchDriver

GPU = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(128, 512, 1024)
CONFIGS = [Config("tiled", 64, 64, 64, group, num_warps=4, num_stages=s) for s in range(2, 10) for group in (8, 1)]
UNITS = units_of(CONFIGS)


class LastFirst(Farm):
    """Makes binaries at once, those of each order that are wanted least first; `refused` stages are refused."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BinaryCache(folder), target_of("sm_90"), "3.6.0", jobs=2, timeout_s=1.0)
        self.refused: Collection[int] = ()
        self.full: Collection[int] = ()
        self.code: str | None = None

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        for _, job in reversed(jobs):
            stages = dict(job.spec.options)["num_stages"]
            if stages in self.refused:
                tell(job.key, Failure(job.key, Outcome.COMPILE_FAILED, "refused"))
            elif stages in self.full:
                tell(job.key, OutputError("the disk is full"))
            else:
                tell(job.key, Binary(job.key, "/entry", "symbol", Resources(code_sha256=self.code)))


class Timer(ExclusiveDevice):
    """A profiler for which a config takes 10 us a stage; `lost` stages have no time. With `fed` it takes candidates
    from a thread of its own, and is some behind."""

    time_source = "cudagraph"

    def __init__(self, *, fed: bool = False, lost: Collection[int] = ()) -> None:
        self.fed, self.lost = fed, lost
        self.rounds = 0

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        self.rounds += 1
        if not self.fed:
            yield from map(self._measurement, itertools.chain.from_iterable(units))
            return
        feed = CandidateFeed(units)
        try:
            while (candidates := feed.next(wait=True)) is not None:
                yield from map(self._measurement, candidates)
        finally:
            feed.close()

    def _measurement(self, candidate: Candidate) -> Measurement:
        config = candidate.config
        if config.num_stages in self.lost:
            return Measurement(config.name, Outcome.CRASHED, self.time_source)
        us = 10.0 * config.num_stages + 1e-9
        return Measurement(config.name, Outcome.MEASURED, self.time_source, "screen", us, (us,))

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        raise NotImplementedError

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        raise NotImplementedError

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing runs."""


class Scripted(Strategy):
    """Asks for the first unit; each measurement of a unit's last config asks for the next; keeps what it is told."""

    left_out = "as scripted"

    def __init__(self, task: Task, at_once: int = 1) -> None:
        self.task = task
        self.left = units_of(task.configs)
        self.now, self.left = self.left[:at_once], self.left[at_once:]
        self.told: list[Event] = []
        self.dropping: list[Unit] = []

    def ask(self, n: int) -> Sequence[Unit]:
        asked, self.now = self.now[:n], self.now[n:]
        return asked

    def tell(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, Measured | Lost) and event.config.GROUP_SIZE_M == 1:
            self.now, self.left = self.now + self.left[:1], self.left[1:]

    def drop(self) -> Sequence[Unit]:
        dropped, self.dropping = self.dropping, []
        return dropped


@pytest.fixture
def farm(tmp_path: Path) -> LastFirst:
    return LastFirst(tmp_path / "cache")


@pytest.fixture
def bench(farm: LastFirst, tmp_path: Path) -> Iterator[CandidateBuilder]:
    folder = str(tmp_path / "modules")
    build_environment = BuildEnvironment(
        farm, GPU, "sm_90", Budget(), init_type="hpl", module_dir=folder, keep_modules=False
    )
    with build_environment.open(PROBLEM, CONFIGS, 0) as opened:
        yield opened


def a_search(
    builder: CandidateBuilder, at_once: int = 1, known: Sequence[Measurement] = (), first: Sequence[str] = ()
) -> SearchDriver:
    chosen = ChosenStrategy("scripted", functools.partial(Scripted, at_once=at_once))
    task = functools.partial(Task, PROBLEM, GPU)
    return SearchDriver(
        builder, CONFIGS, chosen, task, {measurement.config: measurement for measurement in known}, first
    )


def told(search: SearchDriver) -> list[Event]:
    assert isinstance(search.strategy, Scripted)
    return search.strategy.told


def names(measurements: Iterable[Measurement]) -> list[str]:
    return [measurement.config for measurement in measurements]


@pytest.mark.parametrize("fed", [False, True])
def test_a_strategy_may_wait_for_what_it_is_told(bench: CandidateBuilder, fed: bool) -> None:
    """One unit after another, each asked for when the one before has its times: no candidate waits for ever."""
    search, timer = a_search(bench), Timer(fed=fed)
    assert names(search.measurements(timer)) == [config.name for config in CONFIGS]
    assert search.left_out() == {}
    assert 1 <= timer.rounds <= len(UNITS)
    measured = [event for event in told(search) if isinstance(event, Measured)]
    assert measured == [Measured(config, 10.0 * config.num_stages) for config in CONFIGS]
    assert [event.unit for event in told(search) if isinstance(event, Compiled)] == UNITS


@pytest.mark.parametrize("fed", [False, True])
def test_what_was_asked_for_first_is_measured_first(bench: CandidateBuilder, fed: bool) -> None:
    """Though its binary came last; what was made is told as it comes."""
    search = a_search(bench, at_once=len(UNITS))
    assert names(search.measurements(Timer(fed=fed))) == [config.name for config in CONFIGS]
    compiled = [event.unit for event in told(search) if isinstance(event, Compiled)]
    assert compiled == UNITS[::-1]
    assert not any(event.cached for event in told(search) if isinstance(event, Compiled))


def test_what_is_dropped_is_not_measured(bench: CandidateBuilder) -> None:
    """Of what is ready too; it ends as left out, for the strategy's reason, and is no candidate of the finals."""
    search = a_search(bench, at_once=len(UNITS))
    assert isinstance(search.strategy, Scripted)
    measured = []
    for measurement in search.measurements(Timer()):
        measured.append(measurement.config)
        if len(measured) == 1:
            search.strategy.dropping = UNITS[2:]
    assert measured == [config.name for unit in UNITS[:2] for config in unit.configs]
    left = [config.name for unit in UNITS[2:] for config in unit.configs]
    assert list(search.left_out()) == left
    assert {(why.outcome, why.message) for why in search.left_out().values()} == {
        (Outcome.PREDICTED_OUT, "as scripted")
    }
    assert not set(left) & set(bench.build.ready)


def test_a_copy_of_what_is_dropped_is_measured(bench: CandidateBuilder, farm: LastFirst) -> None:
    """Of machine code that several binaries have somebody is measured, though the first that was made is not."""
    farm.code = "a" * 64

    class DropsFirst(Scripted):
        def tell(self, event: Event) -> None:
            self.told.append(event)
            if isinstance(event, Compiled) and event.unit == UNITS[0]:
                self.dropping, self.now = UNITS[:1], UNITS[1:3]

    search = SearchDriver(
        bench, CONFIGS, ChosenStrategy("drops", DropsFirst), functools.partial(Task, PROBLEM, GPU), {}
    )
    assert names(search.measurements(Timer())) == [config.name for config in UNITS[2].configs]
    assert {bench.build.unfit[config.name].outcome for config in UNITS[1].configs} == {Outcome.IDENTICAL}


def test_what_is_refused_or_lost_is_told(bench: CandidateBuilder, farm: LastFirst) -> None:
    """A unit that the compiler refuses as a whole, a config without a time by its outcome."""
    farm.refused = {3}
    search = a_search(bench, at_once=2)
    list(search.measurements(Timer(lost={2})))
    assert told(search)[:2] == [
        Refused(UNITS[1], UNITS[1].configs, Outcome.COMPILE_FAILED),
        Compiled(UNITS[0], bench.build.binaries[CONFIGS[0].name].key, cached=False),
    ]
    assert told(search)[2:4] == [Lost(config, Outcome.CRASHED) for config in UNITS[0].configs]
    assert set(bench.build.unfit) == {config.name for config in UNITS[1].configs}


def test_winners_of_earlier_runs_are_made_first(bench: CandidateBuilder) -> None:
    """Whatever the strategy wants, which is not asked about them, with the other configs of their binaries."""
    incumbent = CONFIGS[13].name
    search = a_search(bench, first=[incumbent])
    measured = names(search.measurements(Timer()))
    assert measured[:2] == [incumbent, CONFIGS[12].name]
    assert {CONFIGS[12], CONFIGS[13]}.isdisjoint(search.task.configs)
    assert sorted(measured) == sorted(config.name for config in CONFIGS)


@pytest.mark.parametrize("count", [1, 4, 7, 16])
def test_what_an_earlier_start_measured_is_told_at_once(bench: CandidateBuilder, count: int) -> None:
    """When the strategy asks for it: it decides as in a run that nobody ended, and nothing is measured twice."""
    wanted = a_search(bench)
    known = list(wanted.measurements(Timer()))[:count]
    search = a_search(bench, known=known)
    assert names(search.measurements(Timer(fed=count == 4))) == [config.name for config in CONFIGS[count:]]
    assert search.searched().asked == wanted.searched().asked
    its, those = ([event for event in told(each) if isinstance(event, Measured)] for each in (search, wanted))
    assert its == those
    assert {measurement.config for measurement in known} < {*bench.build.ready, "another"}
    assert not search.left_out()


def test_what_an_earlier_start_found_unfit_is_not_made_again(bench: CandidateBuilder, farm: LastFirst) -> None:
    """It is told when it is asked for."""
    bench.exclude(dict.fromkeys([config.name for config in UNITS[1].configs], Unfit(Outcome.COMPILE_TIMED_OUT, "")))
    search = a_search(bench, at_once=3)
    measured = names(search.measurements(Timer()))
    assert told(search)[0] == Refused(UNITS[1], UNITS[1].configs, Outcome.COMPILE_TIMED_OUT)
    assert measured == [config.name for config in CONFIGS if config not in UNITS[1].configs]
    assert bench.counts[0] == len(UNITS) - 1


def test_what_is_known_and_not_asked_for_is_told_too(bench: CandidateBuilder) -> None:
    """Before the strategy learns anything new."""
    known = [Timer()._measurement(Candidate(config, ())) for config in CONFIGS[8:10]]
    search = a_search(bench, known=known)
    search.begin()
    list(search.measurements(Timer()))
    measured = [event for event in told(search) if isinstance(event, Measured)]
    assert [event.config for event in measured[:3]] == [*CONFIGS[8:10], CONFIGS[0]]


def test_run_time_parameters_of_a_binary_may_be_asked_for_apart(bench: CandidateBuilder) -> None:
    """One after another, where the first tells whether the others are worth it; the binary is made once."""

    class Apart(Scripted):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            self.left = [Unit((config,)) for config in task.configs]
            self.now, self.left = self.left[:1], self.left[1:]

        def tell(self, event: Event) -> None:
            self.told.append(event)
            if isinstance(event, Measured):
                self.now, self.left = self.now + self.left[:1], self.left[1:]

    search = SearchDriver(bench, CONFIGS, ChosenStrategy("apart", Apart), functools.partial(Task, PROBLEM, GPU), {})
    assert names(search.measurements(Timer())) == [config.name for config in CONFIGS]
    compiled = [(event.unit.configs, event.cached) for event in told(search) if isinstance(event, Compiled)]
    assert compiled == [((config,), config.GROUP_SIZE_M == 1) for config in CONFIGS]
    assert bench.counts == (len(UNITS), 0, 0)


@pytest.mark.parametrize(
    ("unit", "said"),
    [(UNITS[0], "asked for .*, a second time"), (Unit((Config("tiled", 16, 16, 16),)), "which is none of its task")],
)
def test_what_a_strategy_must_not_ask_for(bench: CandidateBuilder, unit: Unit, said: str) -> None:
    """A config twice, or one that pruning did not leave: that is the strategy's mistake, and said."""
    search = a_search(bench)
    assert isinstance(search.strategy, Scripted)
    search.strategy.left.insert(0, unit)
    with pytest.raises(InputError, match=said):
        list(search.measurements(Timer()))


def test_what_a_strategy_must_not_drop(bench: CandidateBuilder) -> None:
    """What it did not ask for."""
    search = a_search(bench)
    assert isinstance(search.strategy, Scripted)
    search.strategy.dropping = [UNITS[-1]]
    with pytest.raises(InputError, match=f"scripted .*{UNITS[-1].configs[0].name}"):
        list(search.measurements(Timer()))


@pytest.mark.parametrize("fed", [False, True])
def test_an_error_of_the_farm_ends_the_search(bench: CandidateBuilder, farm: LastFirst, fed: bool) -> None:
    """After what was measured before it."""
    farm.full = {4}
    measured: list[str] = []
    with pytest.raises(OutputError, match="the disk is full"):
        measured.extend(m.config for m in a_search(bench).measurements(Timer(fed=fed)))
    assert measured == [config.name for config in CONFIGS[:4]]


def test_how_much_was_searched(bench: CandidateBuilder, farm: LastFirst) -> None:
    """Binaries that were measured, refused or known before, of all; what the rest may hold is the strategy's to say."""

    class Sure(Scripted):
        def __init__(self, task: Task) -> None:
            super().__init__(task, at_once=4)
            self.left = []

        def expected_loss(self) -> float | None:
            return 0.0123456789

    farm.refused = {3}
    bench.exclude({config.name: Unfit(Outcome.COMPILE_FAILED, "before") for config in UNITS[0].configs})
    known = Timer()._measurement(Candidate(CONFIGS[15], ()))
    task = functools.partial(Task, PROBLEM, GPU)
    search = SearchDriver(bench, CONFIGS, ChosenStrategy("sure", Sure), task, {known.config: known})
    assert search.confidence == Confidence(None, None)
    assert names(search.measurements(Timer())) == [c.name for c in CONFIGS[4:8]]
    assert search.confidence == Confidence(0.012346, 5 / 8)


def test_a_search_of_everything_expects_no_loss(bench: CandidateBuilder) -> None:
    """Whatever it expects; one that says nothing about the rest leaves it open."""
    search = a_search(bench)
    list(search.measurements(Timer()))
    assert search.confidence == Confidence(0.0, 1.0)
    strategy = ChosenStrategy("half", lambda task: Scripted(replace(task, configs=task.configs[:8])))
    half = SearchDriver(bench, CONFIGS, strategy, functools.partial(Task, PROBLEM, GPU), {})
    list(half.measurements(Timer()))
    assert half.confidence == Confidence(None, 0.5)


def test_every_step_is_noted(bench: CandidateBuilder, farm: LastFirst) -> None:
    """In the order in which it happened, and the journal keeps it to the letter but for the names of binaries."""
    farm.refused = {5}
    search = a_search(bench, at_once=3, first=[CONFIGS[6].name])
    measured = {m.config: m for m in search.measurements(Timer(lost={3}))}
    searched = search.searched()
    assert [step.event for step in searched.steps if isinstance(step, TellStep)] == told(search)
    asked = [unit for step in searched.steps if isinstance(step, AskStep) for unit in step.units]
    assert asked == [unit for unit in UNITS if unit != UNITS[3]] == searched.asked
    numbers = {binary: str(i) for i, binary in enumerate(dict.fromkeys(_binaries(told(search))))}
    again = parse_search(search_value(searched), measured)
    assert [str(step) for step in again.steps] == [
        functools.reduce(lambda text, pair: text.replace(*pair), numbers.items(), str(step)) for step in searched.steps
    ]


def _binaries(events: Iterable[Event]) -> list[str]:
    return [event.binary for event in events if isinstance(event, Compiled)]
