"""The product by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import is_full


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [M, N] of a [M, K], b [K, N], their scales and, if the problem has one, bias [N].

    Calls torch._scaled_mm if it takes the problem. Otherwise multiplies fp8 in float32, and int8 in float64, whose sums
    are exact.
    """
    import torch

    a, b, bias = operands["a"], operands["b"], operands.get("bias")
    scales = operands["scale_a"], operands["scale_b"]
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    if a.is_cuda and a.dtype.is_floating_point and problem.K % 16 == 0 and problem.N % 16 == 0 and b.stride(0) == 1:
        try:
            fast = not is_full(problem) and torch.version.hip is None
            return torch._scaled_mm(
                a, b, scale_a=scales[0], scale_b=scales[1], bias=bias, out_dtype=out, use_fast_accum=fast
            )
        except torch.OutOfMemoryError:
            # The code below needs more memory.
            raise
        except (RuntimeError, ValueError):
            # torch._scaled_mm checks its own requirements: per-row scales need sm_90 and C in bf16, for instance.
            pass
    wide = torch.float32 if a.dtype.is_floating_point else torch.float64
    c = (a.to(wide) @ b.to(wide)).float() * scales[0] * scales[1]
    return (c if bias is None else c + bias.float()).to(out)
