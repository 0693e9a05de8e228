"""Tests of search/cost_model/constants.py: who counts with what."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.constants import (
    Constants,
    constants_for,
    free_of,
    ranges,
    shipped_constants,
    using_constants,
)
from genkern.search.cost_model.predict import predict_us, predicted_us
from genkern.search.guided.features import features_of

MI300X = gpu_for_arch("gfx942")
SLOW = replace(shipped_constants(MI300X), latency_us=3.0, kernel_us=8.0)


def test_a_learned_model_sees_the_shipped_constants() -> None:
    """It was learned with them; what has no model goes by the fitted ones."""
    problem, configs = GemmProblem(16, 4096, 4096), [Config("tiled", 16, 64, 128)]
    shipped = features_of(problem, configs, MI300X)["log_physics"]
    with using_constants(SLOW):
        assert features_of(problem, configs, MI300X)["log_physics"] == shipped
        assert features_of(problem, configs, MI300X, shipped=False)["log_physics"] > shipped


def test_given_constants_hold_for_a_while() -> None:
    """Also where what counts with them fails."""
    with contextlib.suppress(ValueError), using_constants(SLOW):
        assert constants_for(MI300X) == SLOW
        raise ValueError
    assert constants_for(MI300X) == shipped_constants(MI300X)


@pytest.mark.parametrize("arch", known_archs())
def test_every_constant_that_is_fitted_is_one_that_orders(arch: str) -> None:
    """A worse one makes some kernel of the GPU slower, one at a time or many at once: a fit of others would be idle."""
    gpu = gpu_for_arch(arch)
    configs = [Config("tiled", 16, 64, 128, SPLIT_K=8), Config("tiled", 128, 128, 64, num_warps=8)]
    problems = [GemmProblem(16, 1024, 8192), GemmProblem(8192, 8192, 8192)]
    shipped = shipped_constants(gpu)

    def times_us() -> list[float]:
        at_once = [us for problem in problems for us in predicted_us(problem, configs, gpu)]
        alone = [predict_us(problem, config, Resources(), gpu) for problem in problems for config in configs]
        assert at_once == pytest.approx(alone, rel=1e-12)
        return at_once

    before = times_us()
    for name, (least, most) in ranges(gpu).items():
        with using_constants(replace(shipped, **{name: most if name.endswith("_us") else least})):
            assert max(after / us for after, us in zip(times_us(), before, strict=True)) > 1.01, name


def test_shipped_constants_are_in_the_ranges_of_a_fit() -> None:
    """A fit starts from them, and a file that keeps them is a valid one; also of a GPU that a person has described."""
    rates = MI300X.rates
    assert rates is not None
    odd = replace(MI300X, rates=replace(rates, memory_share=0.1, step_us=9.0))
    for gpu in (*map(gpu_for_arch, known_archs()), odd):
        shipped = free_of(shipped_constants(gpu))
        assert shipped.keys() == ranges(gpu).keys()
        assert all(least <= shipped[name] <= most for name, (least, most) in ranges(gpu).items())
    assert constants_for(odd) == odd.rates


def test_a_gpu_is_fitted_by_the_model_that_orders_its_configs() -> None:
    """By rates where there are some, on whosever GPU."""
    h200 = gpu_for_arch("sm_90")
    assert isinstance(shipped_constants(h200), Constants)
    assert "matrix_efficiency" in ranges(h200)
    described = replace(h200, rates=MI300X.rates)
    assert shipped_constants(described) == MI300X.rates
    assert "matrix_share" in ranges(described)
