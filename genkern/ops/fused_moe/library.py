"""The products by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.fused_moe import own_of
from genkern.ops.grouped_gemm.library import grouped_mm, product, scales_of_group


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C of a stage (genkern.ops.fused_moe) with its activation, which comes in the middle of the first stage.

    Calls PyTorch's grouped product if it takes the problem. Otherwise multiplies expert after expert, in float32 or for
    int8 in float64, whose sums are exact.
    """
    import torch

    own, N = own_of(problem), problem.N
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    a, b, slots = operands["a"], operands["b"], operands["slots"].long()
    gates = own.stage == "gate_up"
    if (by_one_call := grouped_mm(problem, a)) is not None:
        return _grouped(problem, operands, by_one_call)
    rows_of_slots = torch.zeros((problem.M * own.top_k, N), dtype=out, device=a.device)
    end = 0
    for expert, said in enumerate(operands["ends"].tolist()):
        start, end = end, said
        if start == end:
            continue
        chosen = slots[start:end]
        rows = chosen // own.top_k if gates else slice(start, end)
        c = product(a[rows], b[expert], *scales_of_group(operands, rows, expert), own.scales)
        if gates:
            gate = getattr(torch.nn.functional, problem.activation)(c[:, :N])
            rows_of_slots[start:end] = (gate * c[:, N:]).to(out)
        else:
            rows_of_slots[chosen] = (c * operands["routing_weights"].reshape(-1)[chosen, None]).to(out)
    if gates:
        return rows_of_slots
    return rows_of_slots.view(problem.M, own.top_k, N).float().sum(1).to(out)


def _grouped(problem: GemmProblem, operands: Mapping[str, Any], grouped: Any) -> Any:
    """Return the same as `library`, with one grouped product for all experts."""
    import torch

    own, N, slots = own_of(problem), problem.N, operands["slots"].long()
    if own.stage == "gate_up":
        c = grouped(operands["a"][slots // own.top_k], operands["b"], offs=operands["ends"])
        return getattr(torch.nn.functional, problem.activation)(c[:, :N]) * c[:, N:]
    c = grouped(operands["a"], operands["b"], offs=operands["ends"])
    rows = torch.empty_like(c)
    rows[slots] = (c * operands["routing_weights"].reshape(-1)[slots, None]).to(c.dtype)
    return rows.view(problem.M, own.top_k, N).float().sum(1).to(c.dtype)
