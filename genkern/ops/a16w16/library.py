"""The product by PyTorch's own call, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C [M, N] of a [M, K], b [K, N] and, where the problem has one, bias [N]; differentiable."""
    import torch

    a, b, bias = operands["a"], operands["b"], operands.get("bias")
    if (of_torch := linear(problem)) is not None:
        return of_torch(a, b.mT, bias)
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    # 16 bits in and 32 out, or two kinds of 16: nothing may be rounded on the way.
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), out)
    c = a.to(wide) @ b.to(wide)
    return (c if bias is None else c + bias).to(out)


def linear(problem: GemmProblem) -> Callable[..., Any] | None:
    """PyTorch's function of x [..., K], weight [N, K] and bias [N] that computes the problem without its activation.

    None where C or B has another type than A.
    """
    import torch

    # As torch.nn.functional has it, also while somebody has put another function there (genkern.patch does).
    return torch._C._nn.linear if problem.dtype_c == problem.dtype_b == problem.dtype_a else None
