"""Replay of a recorded search: a strategy gets the same calls of `ask` and `tell`, in the same order, as in the run.

The strategy of the run then makes the same decisions. Any other strategy can search a problem of which every config was
recorded, with `genkern.tuning.simulation`.
"""

from __future__ import annotations

from genkern.compile.binary_groups import compiled_of
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.journal.search_steps import Asked, Searched, Step, Told
from genkern.search.strategy import MakesStrategy, Task


def task_of(searched: Searched, problem: GemmProblem, gpu: Gpu) -> Task:
    """Return the task of a search, as recorded in the journal."""
    cached = {compiled_of(config) for config in searched.cached}
    return Task(problem, gpu, searched.configs, lambda unit: unit.compiled in cached, searched.number, searched.most)


def decided_again(make: MakesStrategy, searched: Searched, problem: GemmProblem, gpu: Gpu) -> tuple[Step, ...]:
    """Return the steps of `searched` with the decisions of a new strategy in place of the recorded ones."""
    strategy = make(task_of(searched, problem, gpu))
    steps: list[Step] = []
    for step in searched.steps:
        if isinstance(step, Asked):
            steps.append(Asked(step.n, tuple(strategy.ask(step.n))))
        else:
            strategy.tell(step.event)
            steps.append(Told(step.event, tuple(strategy.drop())))
    return tuple(steps)
