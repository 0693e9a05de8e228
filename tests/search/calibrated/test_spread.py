"""Tests of search/spread.py."""

from __future__ import annotations

import pytest

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.cost_model.predict import promising_first
from genkern.search.spread import Spread, spread
from genkern.search.strategy import Task
from genkern.space.prune import prune
from genkern.space.space import load_space

GPU = gpu_for_arch("gfx942")
PROBLEM = GemmProblem(64, 4096, 4096)


@pytest.fixture(scope="module")
def task() -> Task:
    """Twenty binaries of the default space."""
    kept = prune(load_space(None, GPU.arch, "a16w16"), PROBLEM, GPU).kept
    return Task(PROBLEM, GPU, kept, lambda unit: False, 20)


def test_kernels_are_from_all_over_the_space(task: Task) -> None:
    """So many different binaries, from the first of the predicted order to its end, of all families and splits."""
    units = spread(task, 20)
    assert len({unit.compiled for unit in units}) == 20
    order = [config.name for config in promising_first(PROBLEM, task.configs, GPU)]
    places = [order.index(unit.configs[0].name) / len(order) for unit in units]
    assert min(places) < 0.02
    assert max(places) > 0.85
    assert sum(place < 0.3 for place in places) >= 8
    for name in ("family", "BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"):
        assert {getattr(u.configs[0], name) for u in units} == {getattr(c, name) for c in task.configs}
    assert len({config.SPLIT_K for unit in units for config in unit.configs}) > 3
    assert all(len({config.SPLIT_K for config in unit.configs}) == len(unit.configs) <= 3 for unit in units)


def test_a_small_space_is_measured_whole_and_a_search_ends(task: Task) -> None:
    """Each unit is asked for once, whoever asks, and none where there is nothing."""
    few = Task(PROBLEM, GPU, task.configs[:3], lambda unit: False)
    strategy = Spread(few)
    asked = [*strategy.ask(1), *strategy.ask(100)]
    assert {unit.compiled for unit in asked} == {unit.compiled for unit in spread(few, 24)}
    assert strategy.ask(1) == []
    assert spread(Task(PROBLEM, GPU, (), lambda unit: False), 5) == []
