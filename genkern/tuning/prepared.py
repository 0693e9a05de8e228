"""Prepared: a size up to its first orders. It is pruned, its strategy was asked; nothing is measured or told yet."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from genkern.farm.bench import Bench
from genkern.farm.workshop import Workshop
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Unfit
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import Facts
from genkern.kernels.legality import legal
from genkern.search.screening import screening_for
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Task
from genkern.space.prune import Pruned, prune
from genkern.space.space import Space
from genkern.timing.session import Budget
from genkern.tuning.search import Search


@dataclass
class Prepared:
    """A problem whose first binaries are on order; `close` gives up what it holds.

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

    def stand(self, *, behind: bool) -> None:
        """Have its binaries compiled behind those of other sizes, or among them again."""
        if self.bench is not None:
            self.bench.stand(behind=behind)

    def close(self) -> None:
        self.held.close()


@dataclass(frozen=True)
class Preparation:
    """What preparing takes, for any problem. Nothing of it is told to the journal before the problem's turn."""

    workshop: Workshop
    journal: Facts
    budget: Budget
    strategy: ChosenStrategy
    device_index: int

    def of(self, problem: GemmProblem, space: Space, incumbent: Config | None, *, behind: bool) -> Prepared:
        """Prune, write the module, make the strategy, order what it wants first; `behind` what others order or not."""
        facts, gpu = self.journal.of(problem), self.workshop.gpu
        pruned = prune(space, problem, gpu)
        configs, illegal = list(pruned.kept), ""
        if incumbent is not None and (illegal := legal(problem, incumbent, gpu) or ""):
            incumbent = None
        if incumbent is not None and incumbent not in configs:
            configs.append(incumbent)
        prepared = Prepared(pruned, configs, incumbent, illegal, contextlib.ExitStack())
        if not configs:
            return prepared
        # What an earlier run measured, or found best, is measured rather than a copy of it.
        first = {*facts.screened, *([incumbent.name] if incumbent is not None else [])}
        with contextlib.ExitStack() as held:
            bench = held.enter_context(self.workshop.open(problem, configs, self.device_index, first))
            if behind:
                bench.stand(behind=True)
            search = self._search(bench, facts, configs, first)
            search.begin()
            prepared.bench, prepared.search, prepared.held = bench, search, held.pop_all()
        return prepared

    def _search(self, bench: Bench, facts: ProblemFacts, configs: Sequence[Config], first: Collection[str]) -> Search:
        """The search of what an earlier start did not find unfit.

        That stays so in a run that goes on: the others have been screened, or timed, without it.
        """
        problem = bench.job.session.problem

        def on_unfit(names: Sequence[str], unfit: Unfit) -> None:
            # One that is screened was fit, and is tried again by the next run that goes on.
            if new := [name for name in names if name not in facts.screened]:
                self.journal.unfit(problem, new, unfit)

        bench.on_unfit = on_unfit
        if facts.unfit:
            bench.leave_out({c.name: facts.unfit[c.name] for c in configs if c.name in facts.unfit})
        times_us = [measurement.duration_us for measurement in facts.screened.values()]
        # The measured process tells by it what is hopeless, and the best were measured first.
        best_us, screening = min((us for us in times_us if us is not None), default=None), screening_for(self.budget)
        bench.job.session = replace(bench.job.session, best_us=best_us, screening=screening)
        make_task = functools.partial(Task, problem, self.workshop.gpu, number=self.strategy.number, best_us=best_us)
        return Search(bench, configs, self.strategy, make_task, dict(facts.screened), first)
