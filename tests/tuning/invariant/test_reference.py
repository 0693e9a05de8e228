"""Tests of genkern/tuning/invariant/reference.py: the plainest kernel of an order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from forms import made

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal
from genkern.tuning.invariant.group import usually_slower
from genkern.tuning.invariant.reference import alone, reference_of, slower

GPU = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 4096, 4096)
FP8 = GemmProblem(64, 4096, 4096, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16")
WHOLE, PARTS = "wgmma k16", "wgmma k16; 2 parts of 2048"


@pytest.mark.parametrize(
    ("problem", "order"),
    [
        (PROBLEM, WHOLE),
        (PROBLEM, PARTS),
        (PROBLEM, "wgmma k16; 3 parts: 2 x 1408 + 1280"),
        (PROBLEM, "mma k16"),
        (FP8, "wgmma k32; scaled every 128"),
        (FP8, "wgmma k32; scaled every 64"),
    ],
)
def test_an_order_has_a_reference(problem: GemmProblem, order: str) -> None:
    """A config of tune_gemm's family, legal whatever M, of that order."""
    found = [reference_of(GemmProblem(m, *vars_of(problem)), order, GPU) for m in (1, 64, 4096)]
    assert len(set(found)) == 1
    (config,) = set(found)
    assert config is not None
    assert sums_of(problem, config, "sm_90") == order
    assert not legal(problem, config, GPU)


def vars_of(problem: GemmProblem) -> tuple[int, int, str, str, str, str]:
    return problem.N, problem.K, problem.op, problem.dtype_a, problem.dtype_b, problem.dtype_c


def test_an_order_of_one_configs_kernels() -> None:
    """Is that config's, in as many parts; what it takes where it was not measured, the model says."""
    problem = GemmProblem(64, 4096, 4096, "a16w4", "bf16", "int8", "bf16")
    config = made("tiled", 16, 64, 64, 1, 4, 4, 3)
    order = sums_of(problem, config, "sm_90")
    assert (alone(order), alone(WHOLE)) == (config.with_values(SPLIT_K=1), None)
    assert reference_of(problem, order, GPU) == config
    few, many = replace(problem, M=1), replace(problem, M=4096)
    large = made("tiled", 128, 128, 64, 1, 1, 8, 3)
    assert slower(many, order, large, GPU) > slower(few, order, config, GPU) == 1.0
    assert slower(many, WHOLE, large, GPU) == usually_slower(many, WHOLE)
    assert slower(many, order.replace("BK64", "BK48"), large, GPU) == math.inf


def test_orders_of_other_kernels_have_none() -> None:
    """Of another language's finish, of parts that no plain kernel makes."""
    for order in ("wgmma k32; cute finish", "wgmma k16; 500 parts of 8", "wgmma k16; x parts of 8"):
        assert reference_of(PROBLEM, order, GPU) is None
