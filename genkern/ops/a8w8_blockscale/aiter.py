"""AITER's functions for this format: CK's kernels (aiter/ops/gemm_op_a8w8.py), which need row-major scales of A."""

from __future__ import annotations

from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import AiterCall, calls_of

_FUNCTIONS = {
    "aiter ck": ("gemm_a8w8_blockscale_ck", "module_gemm_a8w8_blockscale"),
    "aiter cktile": ("gemm_a8w8_blockscale_cktile", "module_gemm_a8w8_blockscale_cktile"),
}


def has_usual_blocks(problem: GemmProblem) -> bool:
    """Whether scales are for 1x128 blocks of A and 128x128 blocks of B, the only ones that AITER has."""
    own = dict(problem.own)
    return (own.get("block_m", 1), own.get("block_n", 128), own.get("block_k", 128)) == (1, 128, 128)


def calls(aiter: Any, problem: GemmProblem) -> dict[str, AiterCall]:
    """Return AITER's calls by their names in results. The time of a call includes the transposition of A's scales."""
    if problem.bias or not has_usual_blocks(problem):
        return {}
    return calls_of(aiter, problem, _FUNCTIONS, lambda of: (of["scale_a"].contiguous(), of["scale_b"], of["c"]))
