"""Replay: a strategy is asked and told what a run's own was, in the same order; the same one then decides the same.

`genkern.tuning.simulated` has any strategy search what a run measured of every config.
"""

from __future__ import annotations

from genkern.farm.sharing import compiled_of
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.journal.searched import Asked, Searched, Step, Told
from genkern.search.strategy import MakesStrategy, Task


def task_of(searched: Searched, problem: GemmProblem, gpu: Gpu) -> Task:
    """The task of a search as its journal has it."""
    cached = {compiled_of(config) for config in searched.cached}
    known = searched.number, searched.best_us, searched.tried, searched.most, searched.near
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
