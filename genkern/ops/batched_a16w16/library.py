"""The products by PyTorch's own call on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [batch, M, N] of a [batch, M, K] and b [batch, K, N]. Differentiable."""
    import torch

    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    a, b = operands["a"], operands["b"]
    if (of_torch := linear(problem)) is not None:
        return of_torch(a, b.mT)
    # If C is wider than A and B, or they differ, multiply in a type that holds all of them, so that nothing is rounded
    # before.
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), out)
    return torch.bmm(a.to(wide), b.to(wide)).to(out)


def linear(problem: GemmProblem) -> Callable[..., Any] | None:
    """Return torch.bmm for x [batch, M, K] and weight [batch, N, K]; None if B or C has another type than A."""
    import torch

    if not problem.dtype_c == problem.dtype_b == problem.dtype_a:
        return None
    return lambda x, weight: torch.bmm(x, weight.mT)
