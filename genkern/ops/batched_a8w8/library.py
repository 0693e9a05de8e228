"""The products by PyTorch's own call on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [batch, M, N] of a [batch, M, K], b [batch, K, N], scale_a [batch, M, 1] and scale_b [batch, 1, N].

    Multiplies fp8 in float32, and int8 in float64, whose sums are exact.
    """
    import torch

    a, b = operands["a"], operands["b"]
    wide = torch.float32 if a.dtype.is_floating_point else torch.float64
    c = torch.bmm(a.to(wide), b.to(wide)).float() * operands["scale_a"] * operands["scale_b"]
    return c.to(getattr(torch, DTYPES[problem.dtype_c].torch))
