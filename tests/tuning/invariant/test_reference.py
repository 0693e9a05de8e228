"""Tests of genkern/tuning/invariant/reference.py: the plainest kernel of an order."""

from __future__ import annotations

import pytest

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal
from genkern.tuning.invariant.reference import reference_of

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


def test_orders_of_other_kernels_have_none() -> None:
    """Of lanes, of another language's finish, of parts that no plain kernel makes."""
    for order in ("lanes; as gemv", "wgmma k32; cute finish", "wgmma k16; 500 parts of 8", "wgmma k16; x parts of 8"):
        assert reference_of(PROBLEM, order, GPU) is None
