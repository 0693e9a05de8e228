"""Searches that are ended from outside (--budget): after so many binaries, or seconds."""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence

import pytest
from test_search_driver import CONFIGS, GPU, PROBLEM, UNITS, LastFirst, Scripted, Timer, bench, farm, names

from genkern.compile.candidate_builder import CandidateBuilder
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.search.guided.predicted_order import PredictedOrder
from genkern.search.limit import Limit
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Measured, Task, Unit
from genkern.timing.session import Session
from genkern.tuning.search_driver import SearchDriver

__all__ = ["bench", "farm"]
ALL = ChosenStrategy("all", functools.partial(Scripted, at_once=len(UNITS)))


def limited(
    builder: CandidateBuilder, limit: Limit, chosen: ChosenStrategy = ALL, known: Sequence[Measurement] = ()
) -> SearchDriver:
    task = functools.partial(Task, PROBLEM, GPU)
    return SearchDriver(builder, CONFIGS, chosen, task, {m.config: m for m in known}, (), limit)


def reasons(search: SearchDriver) -> set[str]:
    assert {why.outcome for why in search.left_out().values()} <= {Outcome.PREDICTED_OUT}
    return {why.message for why in search.left_out().values()}


@pytest.mark.parametrize("fed", [False, True])
def test_a_limit_of_binaries_is_kept(bench: CandidateBuilder, fed: bool) -> None:
    """The first that the strategy wants, with all their configs, and nothing more is compiled."""
    search = limited(bench, Limit(binaries=3, said="3"))
    assert search.task.most == 3
    assert names(search.measurements(Timer(fed=fed))) == [c.name for unit in UNITS[:3] for c in unit.configs]
    assert bench.counts == (3, 0, 0)
    assert reasons(search) == {"the search ended before it (--budget 3)"}
    assert list(search.left_out()) == [c.name for unit in UNITS[3:] for c in unit.configs]
    assert search.confidence.searched_share == 3 / 8


def test_a_refused_binary_is_none(bench: CandidateBuilder, farm: LastFirst) -> None:
    """It makes room for the next."""
    farm.refused = {2, 4}
    search = limited(bench, Limit(binaries=3))
    assert names(search.measurements(Timer())) == [c.name for i in (1, 3, 4) for c in UNITS[i].configs]
    assert search.confidence.searched_share == 5 / 8


def test_a_limit_that_nothing_reaches_is_not_said(bench: CandidateBuilder) -> None:
    """What is left out then is the strategy's decision."""
    search = limited(bench, Limit(binaries=8, seconds=60.0))
    assert len(names(search.measurements(Timer()))) == len(CONFIGS)
    assert not search.left_out()
    half = ChosenStrategy("half", lambda task: PredictedOrder(Task(PROBLEM, GPU, task.configs, task.is_cached, 4)))
    search = limited(bench, Limit(binaries=4), half)
    assert len(names(search.measurements(Timer()))) == 8
    assert reasons(search) == {PredictedOrder.left_out}


def test_what_an_earlier_start_measured_counts(bench: CandidateBuilder) -> None:
    """It is made whatever the limit, since it may win; its other configs cost no binary."""
    timer = Timer()
    known = [timer._measurement(Candidate(CONFIGS[i], ())) for i in (10, 12, 14)]
    search = limited(bench, Limit(binaries=4), known=known)
    assert search.task.most == 4
    assert names(search.measurements(timer)) == [CONFIGS[i].name for i in (0, 1, 11, 13, 15)]
    assert {m.config for m in known} < set(bench.build.ready)


def test_run_time_parameters_of_a_measured_binary_cost_nothing(bench: CandidateBuilder) -> None:
    """They are asked for when the limit is reached, and are not refused."""

    class GroupsLast(Scripted):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            self.now = [Unit(unit.configs[:1]) for unit in UNITS[:2]]
            self.left = [Unit(UNITS[1].configs[1:]), UNITS[2]]

        def tell(self, event: object) -> None:
            if isinstance(event, Measured) and event.config in UNITS[1].configs:
                self.now, self.left = self.left, []

    search = limited(bench, Limit(binaries=2, said="2"), ChosenStrategy("groups", GroupsLast))
    assert names(search.measurements(Timer())) == [UNITS[i].configs[j].name for i, j in ((0, 0), (1, 0), (1, 1))]
    assert "(--budget 2)" in " ".join(reasons(search))


class Slow(LastFirst):
    """Makes binaries of two and three stages, the others never."""

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        quick = [each for each in jobs if dict(each[1].spec.options)["num_stages"] in (2, 3)]
        super().order(owner, quick, tell)


@pytest.mark.parametrize("fed", [False, True])
def test_a_search_ends_when_its_time_is_up(bench: CandidateBuilder, farm: LastFirst, fed: bool) -> None:
    """Whoever waits for a compile comes back, what was measured stays, and nothing more is asked for."""
    bench.farm = Slow(farm.cache.folder)
    search = limited(bench, Limit(seconds=0.2, said="0.2s"))
    assert names(search.measurements(Timer(fed=fed))) == [c.name for unit in UNITS[:2] for c in unit.configs]
    assert reasons(search) == {"the search ended before it (--budget 0.2s)"}
    assert bench.in_flight == 0
    assert not bench.is_closed


def test_time_is_not_up_before_a_time_is_there(bench: CandidateBuilder) -> None:
    """A size has a winner however slow the first is; then the rest is let be."""

    class Late(Timer):
        def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
            for measurement in super().screen(session, units):
                # Until the limit is over.
                threading.Event().wait(0.06)
                yield measurement

    search = limited(bench, Limit(seconds=0.1))
    # Those of a unit are measured together.
    assert names(search.measurements(Late(lost={2}))) == [c.name for unit in UNITS[:2] for c in unit.configs]
