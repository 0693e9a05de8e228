"""The product by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops import mx


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [M, N] of a [M, K] and b [K, N] (packed if e2m1), their exponents and, if there is one, bias [N].

    Converts A and B to bf16, which holds all of their numbers, then calls torch.nn.functional.linear. It multiplies in
    float32 if the output is float32 or float16.
    """
    import torch

    bias = operands.get("bias")
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    multiplied = torch.float32 if out == torch.float32 else torch.bfloat16
    a = dequantised(operands["a"], operands["scale_a"]).to(multiplied)
    b = dequantised(operands["b"].mT, operands["scale_b"]).to(multiplied)
    if out == torch.float16:
        # A product in bf16 would round the output to fewer bits than fp16 has.
        a, b = a.float(), b.float()
    c = torch.nn.functional.linear(a, b)
    return (c if bias is None else c + bias.to(c.dtype)).to(out)


def dequantised(stored: Any, exponents: Any) -> Any:
    """Return the float32 numbers [rows, K] of fp8 [rows, K] or bytes [rows, K / 2] with exponents [rows, K / 32]."""
    numbers = stored.float() if "float8" in str(stored.dtype) else mx.e2m1_numbers(mx.unpacked(stored))
    return numbers * mx.powers(exponents).repeat_interleave(mx.GROUP, 1)[:, : numbers.shape[1]]
