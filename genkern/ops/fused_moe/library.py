"""The products by PyTorch's own calls, on any device: what a call falls back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.fused_moe import own_of
from genkern.ops.grouped_gemm.library import product


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """C of a stage of its operands (genkern.ops.fused_moe), expert after expert, in float32; with its activation, which is
    in the middle of the first stage.
    """
    import torch

    own, N = own_of(problem), problem.N
    out = getattr(torch, DTYPES[problem.dtype_c].torch)
    a, b, slots = operands["a"], operands["b"], operands["slots"].long()
    gates = own.stage == "gate_up"
    rows_of_slots = torch.zeros((problem.M * own.top_k, N), dtype=out, device=a.device)
    end = 0
    for expert, said in enumerate(operands["ends"].tolist()):
        start, end = end, said
        if start == end:
            continue
        chosen = slots[start:end]
        rows = chosen // own.top_k if gates else slice(start, end)
        c = product(a[rows], b[expert], *_scales(operands, rows, expert))
        if gates:
            gate = getattr(torch.nn.functional, problem.activation)(c[:, :N])
            rows_of_slots[start:end] = (gate * c[:, N:]).to(out)
        else:
            rows_of_slots[chosen] = (c * operands["routing_weights"].reshape(-1)[chosen, None]).to(out)
    if gates:
        return rows_of_slots
    return rows_of_slots.view(problem.M, own.top_k, N).float().sum(1).to(out)


def _scales(operands: Mapping[str, Any], rows: Any, expert: int) -> tuple[Any, ...]:
    if "scale_a" not in operands:
        return ()
    of_a = operands["scale_a"]
    return (of_a if of_a.numel() == 1 else of_a[rows], operands["scale_b"][expert])
