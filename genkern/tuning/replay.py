"""Replay: a strategy on a recorded journal, without a GPU and without compiling.

`decided_again` asks and tells a strategy what the run's own was asked and told, in the same order: the same strategy
then decides the same. `played` has any strategy search a size of which a journal knows every config: whatever it asks
for is there at once, and takes as long as it took then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.journal.facts import ProblemFacts
from genkern.journal.searched import Asked, Searched, Step, Told
from genkern.search.strategy import Compiled, Event, Lost, MakesStrategy, Measured, Refused, Task, Unit


def task_of(searched: Searched, problem: GemmProblem, gpu: Gpu) -> Task:
    """The task of a search as its journal has it."""
    cached = {compiled_of(config) for config in searched.cached}
    known = searched.number, searched.best_us, searched.tried
    return Task(problem, gpu, searched.configs, lambda unit: unit.compiled in cached, *known)


def decided_again(make: MakesStrategy, searched: Searched, problem: GemmProblem, gpu: Gpu) -> tuple[Step, ...]:
    """The steps of `searched` with what this strategy names in them: its own where it decides the same."""
    strategy = make(task_of(searched, problem, gpu))
    steps: list[Step] = []
    for step in searched.steps:
        if isinstance(step, Asked):
            steps.append(Asked(step.n, tuple(strategy.ask(step.n))))
        else:
            strategy.tell(step.event)
            steps.append(Told(step.event, tuple(strategy.drop())))
    return tuple(steps)


@dataclass(frozen=True)
class Played:
    """What a strategy asked for, in its order, and what it found: the configs that were measured, and the best time in
    microseconds (None: nothing was timed)."""

    asked: tuple[Unit, ...]
    measured: tuple[Config, ...]
    best_us: float | None


def played(
    make: MakesStrategy,
    problem: GemmProblem,
    gpu: Gpu,
    facts: ProblemFacts,
    *,
    at_a_time: int = 1,
    number: int | None = None,
) -> Played:
    """Have a strategy search the configs that a journal knows, where up to so many units are made at a time.

    As if every unit had to be compiled, and each were measured to its end before the next.
    """
    known: Mapping[str, Outcome] = {
        **{name: unfit.outcome for name, unfit in facts.unfit.items()},
        **{name: measurement.outcome for name, measurement in facts.screened.items()},
    }
    configs = tuple(Config.parse(name) for name in known)
    strategy = make(Task(problem, gpu, configs, lambda unit: False, number))
    asked: list[Unit] = []
    measured: dict[Config, float] = {}
    waiting: deque[Unit] = deque()

    def tell(event: Event) -> None:
        strategy.tell(event)
        for unit in strategy.drop():
            if unit in waiting:
                waiting.remove(unit)

    while True:
        waiting.extend(more := list(strategy.ask(at_a_time - len(waiting))))
        asked += more
        if not waiting:
            break
        unit = waiting.popleft()
        unfit = [config for config in unit.configs if config.name in facts.unfit]
        if fit := [config for config in unit.configs if config.name in facts.screened]:
            tell(Compiled(unit, str(len(asked)), cached=False))
        for config in unfit:
            tell(Refused(unit, (config,), known[config.name]))
        for config in fit:
            us = facts.screened[config.name].duration_us
            if us is not None:
                measured[config] = us
            tell(Lost(config, known[config.name]) if us is None else Measured(config, us))
    return Played(tuple(asked), tuple(measured), min(measured.values(), default=None))
