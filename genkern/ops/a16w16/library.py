"""The product by PyTorch's own call, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C [M, N] of a [M, K], b [K, N] and, where the problem has one, bias [N]; differentiable."""
    import torch

    a, b, bias = operands["a"], operands["b"], operands.get("bias")
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    if out == a.dtype:
        return torch.nn.functional.linear(a, b.mT, bias)
    # 16 bits in and 32 out: nothing may be rounded on the way.
    c = a.to(torch.promote_types(a.dtype, out)) @ b.to(torch.promote_types(b.dtype, out))
    return (c if bias is None else c + bias).to(out)
