"""The product by PyTorch's own calls, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops import mx


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C [M, N] of a [M, K] and b [K, N], packed where they are e2m1, their exponents and, if there is one, bias [N].

    A and B in bf16, which has all of these numbers, then torch.nn.functional.linear (for float32 output in float32).
    """
    import torch

    bias = operands.get("bias")
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    multiplied = torch.float32 if out == torch.float32 else torch.bfloat16
    a = dequantised(operands["a"], operands["scale_a"]).to(multiplied)
    b = dequantised(operands["b"].mT, operands["scale_b"]).to(multiplied)
    if out == torch.float16:
        # Through bf16 it would lose bits.
        a, b = a.float(), b.float()
    c = torch.nn.functional.linear(a, b)
    return (c if bias is None else c + bias.to(c.dtype)).to(out)


def dequantised(stored: Any, exponents: Any) -> Any:
    """The numbers [rows, K] in float32, of fp8 [rows, K] or bytes [rows, K / 2], with exponents [rows, K / 32]."""
    numbers = stored.float() if "float8" in str(stored.dtype) else mx.e2m1_numbers(mx.unpacked(stored))
    return numbers * mx.powers(exponents).repeat_interleave(mx.GROUP, 1)[:, : numbers.shape[1]]
