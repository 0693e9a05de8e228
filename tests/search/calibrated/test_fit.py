"""Tests of search/calibrated/fit.py: constants are found again in times that they made, and noise moves none."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import pytest

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.calibrated.constants import Constants, shipped_constants
from genkern.search.calibrated.fit import Sizes, Timed, fit, loss_of, modelled_us, order_of
from genkern.search.calibrated.spread import spread
from genkern.search.strategy import Task
from genkern.space.prune import prune
from genkern.space.space import load_space

GPU = gpu_for_arch("gfx942")
PROBLEMS = [GemmProblem(16, 4096, 4096), GemmProblem(512, 4096, 2048), GemmProblem(2048, 4096, 4096)]


@lru_cache(maxsize=1)
def kernels() -> Sizes:
    """Some kernels of each size; what they take is nobody's yet."""
    space = load_space(None, GPU.arch, "a16w16")
    tasks = [Task(each, GPU, prune(space, each, GPU).kept, lambda unit: False) for each in PROBLEMS]
    return {
        task.problem: [Timed(config, Resources(), 1.0) for unit in spread(task, 10) for config in unit.configs]
        for task in tasks
    }


def times_of(constants: Constants, noise: float = 0.0, seed: int = 1) -> Sizes:
    """Kernels whose times are what the predictor says with these constants, times noise."""
    drawn = random.Random(seed)
    return {
        problem: [
            replace(each, duration_us=us * 2 ** drawn.gauss(0, noise))
            for each, us in zip(timed, modelled_us(problem, timed, GPU, constants), strict=True)
        ]
        for problem, timed in kernels().items()
    }


def test_constants_are_found_again_in_the_times_that_they_made() -> None:
    """On another GPU than the shipped ones are of: the fit orders what it was not fitted on, as the truth does."""
    truth = replace(shipped_constants(GPU), latency_us=2.4, l2_bytes_per_clock=40.0, kernel_us=6.0)
    found = fit(times_of(truth, 0.05), GPU, shipped_constants(GPU))
    assert found.is_better
    assert found.loss < found.shipped_loss / 3
    assert found.constants.latency_us == pytest.approx(2.4, rel=0.3)
    fresh = times_of(truth, 0.05, seed=2)
    assert loss_of(fresh, GPU, found.constants) < loss_of(fresh, GPU, shipped_constants(GPU)) / 3


def test_noise_is_no_reason_to_leave_the_shipped_constants() -> None:
    """Where they are right, what a fit gains on its own sizes is lost on others: it is not better."""
    for seed in (1, 2):
        found = fit(times_of(shipped_constants(GPU), 0.3, seed), GPU, shipped_constants(GPU))
        assert not found.is_better


def test_times_that_are_all_longer_change_no_order() -> None:
    """A fit that brings predictions nearer to times without ordering them better is none to keep."""
    twice = {
        problem: [replace(each, duration_us=2 * each.duration_us) for each in timed]
        for problem, timed in times_of(shipped_constants(GPU)).items()
    }
    found = fit(twice, GPU, shipped_constants(GPU))
    assert found.shipped_held_out == pytest.approx(0.0, abs=1e-12)
    assert not found.is_better


def test_an_order_is_judged_by_its_beginning_and_by_all_of_it() -> None:
    """The truth orders its own times without fault; an order that is upside down is as bad as can be."""
    shipped = shipped_constants(GPU)
    problem, timed = next(iter(times_of(shipped).items()))
    right = order_of(problem, timed, GPU, shipped)
    assert (right.kernels, right.best_place, right.best_of_ten) == (len(timed), 0.0, 1.0)
    assert right.rank_correlation == pytest.approx(1.0)
    upside_down = [replace(each, duration_us=1 / each.duration_us) for each in timed]
    wrong = order_of(problem, upside_down, GPU, shipped)
    assert wrong.rank_correlation == pytest.approx(-1.0)
    assert wrong.best_place > 0.9


def test_one_size_is_too_few() -> None:
    """There is nothing to judge a fit on."""
    problem, timed = next(iter(kernels().items()))
    with pytest.raises(ValueError, match="two sizes"):
        fit({problem: timed}, GPU, shipped_constants(GPU))
