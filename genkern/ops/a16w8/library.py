"""The product by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [M, N] of a [M, K], b [K, N], scale_b [1, N] and, if the problem has one, bias [N].

    Converts the scaled weights to the type of `a` (float32 for float32 output), then calls torch.nn.functional.linear.
    """
    import torch

    a, bias = operands["a"], operands.get("bias")
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    if out == torch.float32:
        a = a.float()
    b = (operands["b"].mT.float() * operands["scale_b"].float().mT).to(a.dtype)
    c = torch.nn.functional.linear(a, b)
    return (c if bias is None else c + bias.to(c.dtype)).to(out)
