"""The products by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import own_values
from genkern.ops.grouped_gemm import BLOCK, Grouped
from genkern.ops.op import groups_of


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C with its activation, given A, B [groups, K, N], `ends` or `counts` [groups], and scales if 8-bit.

    Calls PyTorch's grouped product if it takes the problem. Otherwise multiplies group after group, in float32 or for
    int8 in float64, whose sums are exact. Rows that belong to no group are zero.
    """
    import torch

    groups, own = groups_of(problem), own_values(Grouped, problem)
    assert groups is not None
    a, b = operands["a"], operands["b"]
    activate = None if problem.activation == "none" else getattr(torch.nn.functional, problem.activation)
    if not groups.capacity and (by_one_call := grouped_mm(problem, a)) is not None:
        c = by_one_call(a, b, offs=operands["ends"])
        return c if activate is None else activate(c)
    c = torch.zeros((a.shape[0], b.shape[-1]), dtype=getattr(torch, DTYPES[problem.dtype_c].torch), device=a.device)
    end = 0
    for number, said in enumerate(operands[groups.index].tolist()):
        start, end = (number * groups.capacity, number * groups.capacity + said) if groups.capacity else (end, said)
        if end > start:
            rows = slice(start, end)
            found = product(a[rows], b[number], *scales_of_group(operands, rows, number), own.scales)
            c[rows] = (found if activate is None else activate(found)).to(c.dtype)
    return c


def grouped_mm(problem: GemmProblem, a: Any) -> Callable[..., Any] | None:
    """Return PyTorch's grouped product if it takes the problem, else None. It reads no values on the host."""
    import torch

    types = {problem.dtype_a, problem.dtype_b, problem.dtype_c}
    if types != {"bf16"} or not a.is_cuda or problem.row_major_b or problem.K % 8 or problem.N % 8:
        return None
    found: Callable[..., Any] | None = getattr(torch, "_grouped_mm", None)
    return found


def scales_of_group(operands: Mapping[str, Any], rows: Any, number: int) -> tuple[Any, Any]:
    """Return the scales of these rows of A and of weight `number`; (None, None) for operands without scales."""
    if "scale_a" not in operands:
        return None, None
    of_a = operands["scale_a"]
    return of_a if of_a.numel() == 1 else of_a[rows], operands["scale_b"][number]


def product(a: Any, b: Any, scale_a: Any, scale_b: Any, scales: str) -> Any:
    """Return a [rows, K] times b [K, N] with their scales, if any, as float32 [rows, N]."""
    import torch

    if scale_a is None:
        return a.float() @ b.float()
    if scales == "blocks":
        of_a = scale_a.repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
        of_b = scale_b.repeat_interleave(BLOCK, 0)[: b.shape[1]].repeat_interleave(BLOCK, 1)[:, : b.shape[0]]
        return (a.float() * of_a) @ (b.float() * of_b.mT)
    wide = torch.float32 if a.dtype.is_floating_point else torch.float64
    return (a.to(wide) @ b.to(wide)).float() * scale_a * scale_b
