"""The product by PyTorch's own call on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [M, N] of a [M, K], b [K, N] and, if the problem has one, bias [N]. Differentiable."""
    import torch

    a, b, bias = operands["a"], operands["b"], operands.get("bias")
    if (of_torch := linear(problem)) is not None:
        return of_torch(a, b.mT, bias)
    if get_op(problem.op).as_tf32(problem):
        with _tf32():
            c = a @ b
        return (c if bias is None else c + bias).to(getattr(torch, DTYPES[problem.dtype_c].torch))
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    # If C is wider than A and B, or they differ, multiply in a type that holds all of them, so that nothing is rounded
    # before.
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), out)
    c = a.to(wide) @ b.to(wide)
    return (c if bias is None else c + bias).to(out)


def linear(problem: GemmProblem) -> Callable[..., Any] | None:
    """Return PyTorch's function of x [..., K], weight [N, K] and bias [N] that computes the problem, but no activation.

    None if B or C has another type than A, and for tf32, which PyTorch uses only if a process-wide setting allows it.
    """
    import torch

    # The original of torch.nn.functional.linear, which stays the same while genkern.patch replaces that.
    if problem.dtype_c == problem.dtype_b == problem.dtype_a and not get_op(problem.op).as_tf32(problem):
        found: Callable[..., Any] = torch._C._nn.linear
        return found
    return None


@contextmanager
def _tf32() -> Iterator[None]:
    """Allow PyTorch to multiply float32 as tf32 within the block. The setting is process-wide."""
    import torch

    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        yield
    finally:
        matmul.allow_tf32 = before
