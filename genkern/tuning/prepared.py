"""Prepared: a size up to its first orders; and Ahead, which prepares sizes while another one is being measured."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from genkern.farm.bench import Bench
from genkern.farm.workshop import Workshop
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Unfit
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import Facts
from genkern.kernels.legality import legal
from genkern.search.guided.nearest import nearest
from genkern.search.limit import Limit
from genkern.search.screening import screening_for
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Task
from genkern.space.prune import Pruned
from genkern.space.shares import Shares
from genkern.space.space import Space
from genkern.timing.session import Budget
from genkern.tuning.elsewhere import besides as besides_elsewhere
from genkern.tuning.invariant.asked_orders import ANY_ORDER, Orders
from genkern.tuning.processes.foresight import Foresight, foreseen
from genkern.tuning.search import Search

# Preparing is Python, and whoever feeds the measured process meanwhile is too: so soon, in seconds, may the one take
# turns with the other. On a host of 2 cores, with a process that answers every 0.4 ms, preparing a size of 7,000
# configs made 10 % fewer answers with Python's own 5 ms, and no fewer with this.
_TURN_S = 0.001


@dataclass
class Prepared:
    """A problem that is pruned, and whose strategy was asked: its first binaries are on order.

    Nothing is measured or told yet. `close` gives up what it holds.

    `configs` are those that pruning left, and the incumbent where it is legal: `illegal` says why not. Without configs
    there are no `bench` and `search`.
    """

    pruned: Pruned
    configs: Sequence[Config]
    incumbent: Config | None
    illegal: str
    held: contextlib.ExitStack
    bench: Bench | None = None
    search: Search | None = None

    def close(self) -> None:
        self.held.close()


@dataclass(frozen=True)
class Preparation:
    """What preparing takes, for any problem. Nothing of it is told to the journal before the problem's turn.

    `tuned` are winners that the results file had before the run, `orders` those of sums that winners must have.
    """

    workshop: Workshop
    journal: Facts
    budget: Budget
    strategy: ChosenStrategy
    limit: Limit
    device_index: int
    foresight: Foresight | None = None
    tuned: Mapping[GemmProblem, Config] = field(default_factory=dict)
    orders: Orders = ANY_ORDER
    shares: Shares | None = None

    def of(self, problem: GemmProblem, space: Space, incumbent: Config | None, *, behind: bool) -> Prepared:
        """Prune, write the module, make the strategy, order what it wants first; `behind` what others order or not."""
        facts, gpu = self.journal.of(problem), self.workshop.gpu
        what = self.orders.space_of(problem, space), problem, gpu, self.strategy.foresees
        if behind and self.foresight is not None:
            seen = self.foresight.of(*what)
        else:
            # In this size's turn the driver has nothing else to do, nor have others.
            seen = foreseen(*what, None if behind else self.shares)
        pruned = seen.pruned
        configs, illegal = list(pruned.kept), ""
        if incumbent is not None and (illegal := legal(problem, incumbent, gpu) or ""):
            incumbent = None
        if incumbent is not None and incumbent not in configs:
            configs.append(incumbent)
        besides = [config for config in self.orders.besides(problem, gpu) if not legal(problem, config, gpu)]
        configs += [config for config in besides if config not in configs]
        prepared = Prepared(pruned, configs, incumbent, illegal, contextlib.ExitStack())
        if not configs:
            return prepared
        # What an earlier run measured, or found best, is measured rather than a copy of it.
        raced = [config.name for config in ([incumbent] if incumbent is not None else []) + besides]
        first = {*facts.screened, *raced}
        with contextlib.ExitStack() as held:
            bench = held.enter_context(self.workshop.open(problem, configs, self.device_index, first))
            if behind:
                bench.stand(behind=True)
            if outdated := self._outdated(bench, facts, configs):
                self.journal.outdated(problem, outdated)
            search = self._search(bench, facts, configs, raced, seen.model)
            search.begin()
            prepared.bench, prepared.search, prepared.held = bench, search, held.pop_all()
        return prepared

    def _outdated(self, bench: Bench, facts: ProblemFacts, configs: Sequence[Config]) -> list[str]:
        """The configs for which genkern generates other code than an earlier start measured, or may."""
        if not (known := facts.configs):
            return []
        of_today = {config.name: config for config in configs}

        def is_of_today(name: str) -> bool:
            if name in of_today and (code := facts.codes.get(name)) is not None:
                return code == bench.code_of(of_today[name])
            return self.journal.is_generated_alike

        return [name for name in known if not is_of_today(name)]

    def _search(
        self, bench: Bench, facts: ProblemFacts, configs: Sequence[Config], raced: Collection[str], model: object = None
    ) -> Search:
        """The search of what an earlier start did not find unfit.

        That stays so in a run that goes on: the others have been screened, or timed, without it.
        """
        problem = bench.job.session.problem

        def on_unfit(names: Sequence[str], unfit: Unfit) -> None:
            # One that is screened was fit, and is tried again by the next run that goes on.
            if new := [name for name in names if name not in facts.screened]:
                self.journal.unfit(problem, new, unfit, bench.code_of(Config.parse(new[0])))

        bench.on_unfit = on_unfit
        if facts.unfit:
            bench.leave_out({c.name: facts.unfit[c.name] for c in configs if c.name in facts.unfit})
        times_us = [measurement.duration_us for measurement in facts.screened.values()]
        # The measured process tells by it what is hopeless, and the best were measured first.
        best_us, screening = min((us for us in times_us if us is not None), default=None), screening_for(self.budget)
        bench.job.session = replace(bench.job.session, best_us=best_us, screening=screening)
        winners = {**self.tuned, **{winner.problem: winner.config for winner in self.journal.winners()}}
        near = nearest(problem, winners.items())
        number, gpu = self.strategy.number, self.workshop.gpu
        make_task = functools.partial(Task, problem, gpu, number=number, near=near, foreseen=model)
        others = functools.partial(besides_elsewhere, problem, configs, gpu)
        return Search(bench, configs, self.strategy, make_task, dict(facts.screened), raced, self.limit, others)


class Ahead:
    """Sizes on their way to their turn. Any thread may begin and forget them, the one that measures takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_the_way: dict[GemmProblem, _OnTheWay] = {}

    def begin(self, problem: GemmProblem, make: Callable[[], Prepared]) -> None:
        """Have `make` prepare the problem, which it will until `take` or `forget`."""
        sys.setswitchinterval(min(_TURN_S, sys.getswitchinterval()))
        with self._lock:
            self._on_the_way[problem] = _OnTheWay(make)

    def take(self, problem: GemmProblem) -> Prepared | None:
        """What was prepared, once it is; None where nobody began. Raises what ended the preparation."""
        with self._lock:
            on_the_way = self._on_the_way.pop(problem, None)
        return None if on_the_way is None else on_the_way.result()

    def forget(self, problem: GemmProblem | None = None, *, wait: bool = False) -> None:
        """The problem (None: each) is not wanted here: what was prepared goes away, at once or when it is there.

        With `wait` it has gone when this returns.
        """
        with self._lock:
            gone = [each for each in list(self._on_the_way) if problem in (None, each)]
            on_the_way = [self._on_the_way.pop(each) for each in gone]
        for each in on_the_way:
            each.forget(wait=wait)


class _OnTheWay:
    """One size that is being prepared, or waits for its turn."""

    def __init__(self, make: Callable[[], Prepared]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._error: BaseException | None = None
        self._is_unwanted = False
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    def result(self) -> Prepared:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._prepared is not None
        return self._prepared

    def forget(self, *, wait: bool) -> None:
        with self._lock:
            self._is_unwanted = True
            if self._prepared is not None:
                self._prepared.close()
        if wait:
            self._thread.join()

    def _prepare(self) -> None:
        try:
            prepared = self._make()
        except BaseException as error:  # told when its turn comes, whatever it is
            self._error = error
            return
        with self._lock:
            self._prepared = prepared
            if self._is_unwanted:
                prepared.close()
