"""The products by PyTorch's own calls, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.grouped_gemm import BLOCK
from genkern.ops.op import groups_of


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C of A, B [groups, K, N] and `ends` or `counts` [groups], with the scales of 8-bit operands: group after group,
    in float32 (int8 in float64, whose sums are exact). Rows that do not count are zero.
    """
    import torch

    groups = groups_of(problem)
    assert groups is not None
    a, b, ends = operands["a"], operands["b"], operands[groups.index].tolist()
    c = torch.zeros((a.shape[0], b.shape[-1]), dtype=getattr(torch, DTYPES[problem.dtype_c].torch), device=a.device)
    end = 0
    for number, said in enumerate(ends):
        start, end = (number * groups.capacity, number * groups.capacity + said) if groups.capacity else (end, said)
        if end > start:
            c[start:end] = product(a[start:end], b[number], *_scales(operands, slice(start, end), number)).to(c.dtype)
    return c


def _scales(operands: Mapping[str, Any], rows: Any, number: int) -> tuple[Any, ...]:
    if "scale_a" not in operands:
        return ()
    of_a = operands["scale_a"]
    return (of_a if of_a.numel() == 1 else of_a[rows], operands["scale_b"][number])


def product(a: Any, b: Any, scale_a: Any = None, scale_b: Any = None) -> Any:
    """a [rows, K] by b [K, N], with their scales, if they have any: float32 [rows, N]."""
    import torch

    if scale_a is None:
        return a.float() @ b.float()
    if scale_a.dim() == 2 and scale_a.shape[1] > 1:
        of_a = scale_a.repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
        of_b = scale_b.repeat_interleave(BLOCK, 0)[: b.shape[1]].repeat_interleave(BLOCK, 1)[:, : b.shape[0]]
        return (a.float() * of_a) @ (b.float() * of_b.mT)
    wide = torch.float32 if a.dtype.is_floating_point else torch.float64
    return (a.to(wide) @ b.to(wide)).float() * scale_a * scale_b
