"""Replay of a recorded search: a strategy gets the same calls of `ask` and `tell`, in the same order, as in the run.

The strategy of the run then makes the same decisions. Any other strategy can search a problem of which every config was
recorded, with `genkern.tuning.simulation`.
"""

from __future__ import annotations

from genkern.compile.binary_groups import binary_group
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.journal.search_steps import AskStep, SearchRecord, Step, TellStep
from genkern.search.strategy import MakesStrategy, Task


def task_of(searched: SearchRecord, problem: GemmProblem, gpu: Gpu) -> Task:
    """Return the task of a search, as recorded in the journal."""
    cached = {binary_group(config) for config in searched.cached}
    return Task(problem, gpu, searched.configs, lambda unit: unit.compiled in cached, searched.number, searched.most)


def replay_decisions(make: MakesStrategy, searched: SearchRecord, problem: GemmProblem, gpu: Gpu) -> tuple[Step, ...]:
    """Return the steps of `searched` with the decisions of a new strategy in place of the recorded ones."""
    strategy = make(task_of(searched, problem, gpu))
    steps: list[Step] = []
    for step in searched.steps:
        if isinstance(step, AskStep):
            steps.append(AskStep(step.n, tuple(strategy.ask(step.n))))
        else:
            strategy.tell(step.event)
            steps.append(TellStep(step.event, tuple(strategy.drop())))
    return tuple(steps)
