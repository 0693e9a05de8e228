"""The product by PyTorch's own calls, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.a16w4 import A16W4
from genkern.ops.fields import own_values

# By code, the magnitudes of e2m1 and then what is below zero (OCP Microscaling Formats 1.0, section 5.3.3).
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = (*_MAGNITUDES, *(-each for each in _MAGNITUDES))


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C [M, N] of a [M, K], packed b [K / 2, N], scale_b [N, groups] and, where the problem has one, bias [N].

    The weights in the type of `a`, then torch.nn.functional.linear (for float32 output in float32).
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
    """The weights [N, K] in float32, of packed ones [K / 2, N]; bytes may be signed or not."""
    import torch

    own = own_values(A16W4, problem)
    both = packed.mT.int()
    codes = torch.stack((both & 15, both >> 4 & 15), -1).flatten(-2)[:, : problem.K]
    if own.weights == "mxfp4":
        numbers = torch.tensor(_E2M1, device=codes.device)[codes]
        scales = torch.exp2(scales.view(torch.uint8).float() - 127)
    else:
        numbers = ((codes ^ 8) - 8).float()
    return numbers * scales.float().repeat_interleave(own.group, 1)[:, : problem.K]
