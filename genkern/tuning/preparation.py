"""Preparation of sizes, up to the first orders of compiles, while another size is being measured."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.candidate_builder import CandidateBuilder
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Unfit
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import FactWriter
from genkern.kernels.legality import legal
from genkern.search.limit import Limit
from genkern.search.screening import screening_for
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Task
from genkern.space.prune import Pruned, prune
from genkern.space.space import Space
from genkern.timing.session import Budget
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint
from genkern.tuning.peer_timings import extra_configs as besides_elsewhere
from genkern.tuning.search_driver import SearchDriver

# Python's switch interval in seconds while sizes are prepared, so that the thread that feeds the measured process does
# not have to wait. On a host with 2 cores and a process that answers every 0.4 ms, preparing a size of 7,000 configs
# cost 10 % of the answers with Python's default of 5 ms, and none with this value.
_TURN_S = 0.001


@dataclass
class PreparedProblem:
    """A problem that is pruned, whose strategy was asked for units, and whose first binaries are ordered.

    None of its configs has been measured in this start of the run. `close` releases its resources.

    pruned: the result of pruning
    configs: the configs that pruning left, the incumbent if it is legal, and configs of an order of sums
    incumbent: the config that the results file had before; None if there is none or it is not legal
    illegal: why the incumbent is not legal, or ""
    held: the resources to release
    bench, search: None if there are no configs
    """

    pruned: Pruned
    configs: Sequence[Config]
    incumbent: Config | None
    illegal: str
    held: contextlib.ExitStack
    builder: CandidateBuilder | None = None
    search: SearchDriver | None = None

    def close(self) -> None:
        self.held.close()


@dataclass(frozen=True)
class Preparation:
    """Prepares problems. The journal records nothing about a problem before its turn.

    orders: the order of sums that winners must have
    """

    build_environment: BuildEnvironment
    journal: FactWriter
    budget: Budget
    strategy: ChosenStrategy
    limit: Limit
    device_index: int
    orders: SumOrderConstraint = ANY_ORDER

    def of(self, problem: GemmProblem, space: Space, incumbent: Config | None, *, behind: bool) -> PreparedProblem:
        """Prune the space, write the module with the kernels, make the strategy and order its first units.

        `behind`: compile these units only when no size in its turn needs the workers.
        """
        facts, gpu = self.journal.of(problem), self.build_environment.gpu
        pruned = prune(self.orders.space_of(problem, space), problem, gpu)
        configs, illegal = list(pruned.kept), ""
        if incumbent is not None and (illegal := legal(problem, incumbent, gpu) or ""):
            incumbent = None
        if incumbent is not None and incumbent not in configs:
            configs.append(incumbent)
        extra_configs = [
            config for config in self.orders.required_configs(problem, gpu) if not legal(problem, config, gpu)
        ]
        configs += [config for config in extra_configs if config not in configs]
        prepared = PreparedProblem(pruned, configs, incumbent, illegal, contextlib.ExitStack())
        if not configs:
            return prepared
        # Of configs with equal machine code, the one that an earlier run measured or found best is measured.
        raced = [config.name for config in ([incumbent] if incumbent is not None else []) + extra_configs]
        first = {*facts.screened, *raced}
        with contextlib.ExitStack() as held:
            builder = held.enter_context(self.build_environment.open(problem, configs, self.device_index, first))
            if behind:
                builder.set_background(background=True)
            if outdated := self._outdated(builder, facts, configs):
                self.journal.add_outdated(problem, outdated)
            search = self._search(builder, facts, configs, raced)
            search.begin()
            prepared.builder, prepared.search, prepared.held = builder, search, held.pop_all()
        return prepared

    def _outdated(self, builder: CandidateBuilder, facts: ProblemFacts, configs: Sequence[Config]) -> list[str]:
        """Return the names of measured configs whose code, as this version generates it, differs or may differ."""
        if not (known := facts.configs):
            return []
        of_today = {config.name: config for config in configs}

        def is_of_today(name: str) -> bool:
            if name in of_today and (code := facts.codes.get(name)) is not None:
                return code == builder.code_of(of_today[name])
            return self.journal.is_generated_alike

        return [name for name in known if not is_of_today(name)]

    def _search(
        self, builder: CandidateBuilder, facts: ProblemFacts, configs: Sequence[Config], raced: Collection[str]
    ) -> SearchDriver:
        """Make the search over the configs that no earlier start of the run found unfit.

        Unfit configs stay unfit when a run continues, since the other configs were screened or timed without them.
        """
        problem = builder.build.session.problem

        def on_unfit(names: Sequence[str], unfit: Unfit) -> None:
            # A screened config was fit before; the next start tries it again.
            if new := [name for name in names if name not in facts.screened]:
                self.journal.add_unfit(problem, new, unfit, builder.code_of(Config.parse(new[0])))

        builder.on_unfit = on_unfit
        if facts.unfit:
            builder.exclude({c.name: facts.unfit[c.name] for c in configs if c.name in facts.unfit})
        times_us = [measurement.duration_us for measurement in facts.screened.values()]
        # The measured process stops timing configs that are much slower than the best time so far.
        best_us, screening = min((us for us in times_us if us is not None), default=None), screening_for(self.budget)
        builder.build.session = replace(builder.build.session, best_us=best_us, screening=screening)
        number, gpu = self.strategy.number, self.build_environment.gpu
        make_task = functools.partial(Task, problem, gpu, number=number)
        others = functools.partial(besides_elsewhere, problem, configs, gpu)
        return SearchDriver(builder, configs, self.strategy, make_task, dict(facts.screened), raced, self.limit, others)


class PreparationQueue:
    """Sizes that are being prepared. Any thread may call `begin` and `forget`; the tuner calls `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_the_way: dict[GemmProblem, _RunningPreparation] = {}

    def begin(self, problem: GemmProblem, make: Callable[[], PreparedProblem]) -> None:
        """Start preparing the problem with `make`, in a thread."""
        sys.setswitchinterval(min(_TURN_S, sys.getswitchinterval()))
        with self._lock:
            self._on_the_way[problem] = _RunningPreparation(make)

    def take(self, problem: GemmProblem) -> PreparedProblem | None:
        """Wait for a prepared problem and return it; None if `begin` was not called. Raises its error."""
        with self._lock:
            on_the_way = self._on_the_way.pop(problem, None)
        return None if on_the_way is None else on_the_way.result()

    def forget(self, problem: GemmProblem | None = None, *, wait: bool = False) -> None:
        """Give up preparing the problem (None: every problem), and close it as soon as it is prepared.

        With `wait`, return only when it is closed.
        """
        with self._lock:
            gone = [each for each in list(self._on_the_way) if problem in (None, each)]
            on_the_way = [self._on_the_way.pop(each) for each in gone]
        for each in on_the_way:
            each.forget(wait=wait)


class _RunningPreparation:
    """One size that is being prepared, or is prepared and waits for its turn."""

    def __init__(self, make: Callable[[], PreparedProblem]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._prepared: PreparedProblem | None = None
        self._error: BaseException | None = None
        self._is_unwanted = False
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    def result(self) -> PreparedProblem:
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
        except BaseException as error:  # raised by result()
            self._error = error
            return
        with self._lock:
            self._prepared = prepared
            if self._is_unwanted:
                prepared.close()
