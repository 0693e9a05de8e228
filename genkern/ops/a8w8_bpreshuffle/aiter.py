"""AITER's functions for this format: CK's kernels for fp8 in AITER's own weight layout (aiter/ops/gemm_op_a8w8.py)."""

from __future__ import annotations

from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import AiterCall, calls_of

# Fields that a problem must have for AITER to take it.
ASKED = {"scales": "per_token"}
_FUNCTIONS = {
    "aiter ck": ("gemm_a8w8_bpreshuffle_ck", "module_gemm_a8w8_bpreshuffle"),
    "aiter cktile": ("gemm_a8w8_bpreshuffle_cktile", "module_gemm_a8w8_bpreshuffle_cktile"),
}


def calls(aiter: Any, problem: GemmProblem) -> dict[str, AiterCall]:
    """Return AITER's calls by their names in results."""
    own = dict(problem.own)
    if own.get("scales") != "per_token" or own.get("layout", "n16k16") != "n16k16":
        return {}
    if problem.bias or not problem.dtype_a.startswith("fp8"):
        return {}
    return calls_of(aiter, problem, _FUNCTIONS, lambda of: (of["scale_a"], of["scale_b"], of["c"]))
