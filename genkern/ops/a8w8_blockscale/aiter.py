"""AITER's kernels for this format, by its own Python interface; none of it has run on AMD hardware here.

Source (ROCm/aiter, 2026-08): aiter/ops/gemm_op_a8w8.py: gemm_a8w8_blockscale_ck and gemm_a8w8_blockscale_cktile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from genkern.gemm.problem import GemmProblem

_FUNCTIONS = {"aiter ck": "gemm_a8w8_blockscale_ck", "aiter cktile": "gemm_a8w8_blockscale_cktile"}


def aiter_calls(aiter: Any, problem: GemmProblem) -> dict[str, Callable[[Mapping[str, Any]], None]]:
    """By name, functions of the operands that write C; without those that this aiter does not have."""
    if problem.bias or problem.activation != "none" or not problem.row_major_a or problem.row_major_b:
        return {}
    there = {name: getattr(aiter, function, None) for name, function in _FUNCTIONS.items()}
    return {name: partial(_call, function) for name, function in there.items() if function is not None}


def _call(function: Any, operands: Mapping[str, Any]) -> None:
    function(operands["a"], operands["b"].T, operands["scale_a"], operands["scale_b"], operands["c"])
