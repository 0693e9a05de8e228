"""The products by PyTorch's own call, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C [batch, M, N] of a [batch, M, K] and b [batch, K, N]; differentiable."""
    import torch

    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    a, b = operands["a"], operands["b"]
    if (of_torch := linear(problem)) is not None:
        return of_torch(a, b.mT)
    # 16 bits in and 32 out, or two kinds of 16: nothing may be rounded on the way.
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), out)
    return torch.bmm(a.to(wide), b.to(wide)).to(out)


def linear(problem: GemmProblem) -> Callable[..., Any] | None:
    """torch.bmm of x [batch, M, K] and weight [batch, N, K]; None where C or B has another type than A."""
    import torch

    if not problem.dtype_c == problem.dtype_b == problem.dtype_a:
        return None
    return lambda x, weight: torch.bmm(x, weight.mT)
