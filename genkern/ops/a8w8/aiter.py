"""AITER's kernels for this format, by its own Python interface; none of it has run on AMD hardware here.

Source (ROCm/aiter, 2026-08): aiter/ops/gemm_op_a8w8.py, gemm_a8w8_ck: CK's kernels, scales of rows and of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.gemm.problem import GemmProblem


def aiter_calls(aiter: Any, problem: GemmProblem) -> dict[str, Callable[[Mapping[str, Any]], None]]:
    """By name, functions of the operands that write C; without those that this aiter does not have."""
    ck = getattr(aiter, "gemm_a8w8_ck", None)
    per_row = dict(problem.own).get("scales") == "per_token"
    if ck is None or not per_row or problem.activation != "none" or not problem.row_major_a or problem.row_major_b:
        return {}

    def call(operands: Mapping[str, Any]) -> None:
        scales = operands["scale_a"], operands["scale_b"]
        ck(operands["a"], operands["b"].T, *scales, operands["c"], operands.get("bias"), 0)

    return {"aiter ck": call}
