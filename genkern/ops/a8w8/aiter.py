"""AITER's functions for this format: CK's kernels, with scales per row and per column (aiter/ops/gemm_op_a8w8.py)."""

from __future__ import annotations

from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import AiterCall, calls_of

# Fields that a problem must have for AITER to take it.
ASKED = {"scales": "per_token"}
_FUNCTIONS = {"aiter ck": ("gemm_a8w8_ck", "module_gemm_a8w8")}


def calls(aiter: Any, problem: GemmProblem) -> dict[str, AiterCall]:
    """Return AITER's calls by their names in results."""
    if dict(problem.own).get("scales") != "per_token":
        return {}
    names = "scale_a", "scale_b", "c"
    return calls_of(aiter, problem, _FUNCTIONS, lambda of: (*(of[name] for name in names), of.get("bias")))
