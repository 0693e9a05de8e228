"""Tests of search/cost_model/fit.py: constants are found again in times that they made, and noise moves none.

On one GPU for each model that orders configs: without rates, and with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
from long_tests import drawn, repeats

from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.constants import Counted, shipped_constants
from genkern.search.cost_model.fit import Sizes, Timed, fit, loss_of, modelled_us, order_of
from genkern.search.spread import spread
from genkern.search.strategy import Task
from genkern.space.prune import prune
from genkern.space.space import load_space

GPUS = {arch: gpu_for_arch(arch) for arch in ("sm_90", "gfx942")}
# What a fit has to find: a GPU on which each of these differs from what is shipped.
TRUTHS = {
    "sm_90": {"latency_us": 2.4, "l2_bytes_per_clock": 24.0, "kernel_us": 6.0},
    "gfx942": {"latency_us": 1.2, "matrix_share": 0.25, "last_level_tb_per_s": 3.0},
}
each_model = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
# What the fit itself does, whatever the model.
one_model = pytest.mark.parametrize("gpu", drawn([*GPUS.values()], 1))
PROBLEMS = [GemmProblem(16, 4096, 4096), GemmProblem(512, 4096, 2048), GemmProblem(2048, 4096, 4096)]
OTHERS = [GemmProblem(64, 6144, 2048), GemmProblem(256, 2048, 8192), GemmProblem(8192, 1024, 4096)]


@lru_cache(maxsize=12)
def kernels(arch: str, problem: GemmProblem) -> list[Timed]:
    """Some kernels of a size; what they take is nobody's yet."""
    gpu, space = GPUS[arch], load_space(None, arch, "a16w16")
    task = Task(problem, gpu, prune(space, problem, gpu).kept, lambda unit: False)
    return [Timed(config, Resources(), 1.0) for unit in spread(task, 10) for config in unit.configs]


def times_of(
    gpu: Gpu,
    constants: Counted,
    noise: float = 0.0,
    seed: int = 1,
    problems: Sequence[GemmProblem] = PROBLEMS,
    each: int = 1,
) -> Sizes:
    """Kernels whose times are what the predictor says with these constants, times noise; of `each` one."""
    drawn = random.Random(seed)
    sizes = {problem: kernels(gpu.arch, problem)[::each] for problem in problems}
    return {
        problem: [
            replace(kernel, duration_us=us * 2 ** drawn.gauss(0, noise))
            for kernel, us in zip(timed, modelled_us(problem, timed, gpu, constants), strict=True)
        ]
        for problem, timed in sizes.items()
    }


@each_model
def test_constants_are_found_again_in_the_times_that_they_made(gpu: Gpu) -> None:
    """On another GPU than the shipped ones are of: the fit orders what it was not fitted on, as the truth does."""
    shipped, differ = shipped_constants(gpu), TRUTHS[gpu.arch]
    truth = replace(shipped, **differ)
    found = fit(times_of(gpu, truth, 0.05, each=2), gpu, shipped)
    assert found.is_better
    assert found.loss < found.shipped_loss / 3
    assert {name: getattr(found.constants, name) for name in differ} == pytest.approx(differ, rel=0.3)
    fresh = times_of(gpu, truth, 0.05, seed=2)
    assert loss_of(fresh, gpu, found.constants) < loss_of(fresh, gpu, shipped) / 3


@one_model
def test_noise_is_no_reason_to_leave_the_shipped_constants(gpu: Gpu) -> None:
    """Where they are right, what a fit gains on its own sizes is lost on others: it is not better."""
    shipped = shipped_constants(gpu)
    assert not fit(
        times_of(gpu, shipped, 0.1, problems=[*PROBLEMS, *OTHERS[: repeats(1, 3)]], each=3), gpu, shipped
    ).is_better


@one_model
def test_times_that_are_all_longer_change_no_order(gpu: Gpu) -> None:
    """A fit that brings predictions nearer to times without ordering them better is none to keep."""
    shipped = shipped_constants(gpu)
    twice = {
        problem: [replace(each, duration_us=2 * each.duration_us) for each in timed]
        for problem, timed in times_of(gpu, shipped, each=3).items()
    }
    found = fit(twice, gpu, shipped)
    assert found.shipped_held_out == pytest.approx(0.0, abs=1e-12)
    assert not found.is_better


@each_model
def test_an_order_is_judged_by_its_beginning_and_by_all_of_it(gpu: Gpu) -> None:
    """The truth orders its own times without fault; an order that is upside down is as bad as can be."""
    shipped = shipped_constants(gpu)
    problem, timed = next(iter(times_of(gpu, shipped).items()))
    right = order_of(problem, timed, gpu, shipped)
    assert (right.kernels, right.best_place, right.best_of_ten) == (len(timed), 0.0, 1.0)
    assert right.rank_correlation == pytest.approx(1.0)
    upside_down = [replace(each, duration_us=1 / each.duration_us) for each in timed]
    wrong = order_of(problem, upside_down, gpu, shipped)
    assert wrong.rank_correlation == pytest.approx(-1.0)
    assert wrong.best_place > 0.9


def test_one_size_is_too_few() -> None:
    """There is nothing to judge a fit on."""
    gpu = GPUS["gfx942"]
    with pytest.raises(ValueError, match="two sizes"):
        fit({PROBLEMS[0]: kernels("gfx942", PROBLEMS[0])}, gpu, shipped_constants(gpu))
