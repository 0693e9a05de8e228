"""The product by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops import mx
from genkern.ops.a16w4 import A16W4
from genkern.ops.fields import own_values


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [M, N] of a [M, K], packed b [K / 2, N], scale_b [N, groups] and, if the problem has one, bias [N].

    Converts the weights to the type of `a`, then calls torch.nn.functional.linear (in float32 for float32 output).
    """
    import torch

    a, bias = operands["a"], operands.get("bias")
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    b = dequantised(problem, operands["b"], operands["scale_b"]).to(a.dtype)
    if out == torch.float32:
        a, b = a.float(), b.float()
    c = torch.nn.functional.linear(a, b)
    return (c if bias is None else c + bias.to(c.dtype)).to(out)


def dequantised(problem: GemmProblem, packed: Any, scales: Any) -> Any:
    """Return the weights [N, K] in float32 from packed ones [K / 2, N], whose bytes may be int8 or uint8."""
    own = own_values(A16W4, problem)
    codes = mx.unpacked(packed.mT)[:, : problem.K]
    if own.weights == "mxfp4":
        numbers, scales = mx.e2m1_numbers(codes), mx.powers(scales)
    else:
        numbers = ((codes ^ 8) - 8).float()
    return numbers * scales.float().repeat_interleave(own.group, 1)[:, : problem.K]
