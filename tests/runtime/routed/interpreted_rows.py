"""Runs templates/rows/kernels.py under Triton's interpreter, for test_row_kernels: a line for what differs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.kernels.moe_layer import narrowed_by, ordered_by
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.source_file import path_of
from genkern.kernels.source import load_module
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_kernels import FILE

kernels = load_module(str(path_of(FILE)))


def ordered(rows: int, groups: int, block: int, dtype: torch.dtype) -> None:
    # Some of no group.
    ids = torch.randint(-1, groups + 2, (rows,), dtype=dtype)
    # Group 1 has no row.
    ids[ids == 1] = 0
    ends, slots = torch.full((groups,), -1, dtype=torch.int32), torch.full((rows,), -1, dtype=torch.int32)
    kernels.order_rows[(groups,)](ids, ends, slots, rows, block)
    wanted = order_of(ids[:, None], groups)
    if not (torch.equal(ends, wanted[0]) and torch.equal(slots, wanted[1])):
        print(f"{rows} rows of {groups} groups: {ends.tolist()} {slots.tolist()}")


def narrowed(scales: str, rows: int, columns: int) -> None:
    x = (torch.randn(rows, columns) * torch.logspace(-3, 3, rows)[:, None]).half()
    x[0, :128] = 0
    # Not rounded: the interpreter rounds to fp8 in a way of its own.
    found = torch.full((rows, columns), float("nan"))
    if scales == "per_token":
        scale = torch.full((rows, 1), float("nan"))
        kernels.quantize_rows[(rows,)](x, found, scale, columns, 448, 64)
        spread = scale
    else:
        scale = torch.full((-(-columns // 128), rows), float("nan")).T
        kernels.quantize_blocks[(rows, -(-columns // 256))](x, found, scale, rows, columns, 448, 128, 2)
        spread = scale.repeat_interleave(128, 1)[:, :columns]
    _, wanted = quantized(x, torch.float8_e4m3fn, scales)
    if not (torch.equal(scale, wanted) and torch.equal(found, x.float() / spread)):
        print(f"{scales}: scales {scale.tolist()}, not {wanted.tolist()}")


@triton.jit
def exp(x):
    """The interpreter calls no library of a device."""
    return tl.exp(x)


def gated(rows: int, columns: int, pitch: int, gate: int, up: int) -> None:
    both = (10 * torch.randn(rows, pitch)).half()
    both[0, gate : gate + 4] = torch.tensor([-65504.0, 65504.0, 0.0, -0.0])
    found = torch.full((rows + 1, columns), float("nan")).half()
    kernels.libdevice = SimpleNamespace(exp=exp)
    kernels.gate_rows[(rows, -(-columns // 32))](both, both, found, gate, up, pitch, columns, 32)
    wanted = torch.nn.functional.silu(both[:, gate : gate + columns]) * both[:, up : up + columns]
    # Their exponential functions may differ in the last bit of 24.
    apart = (found[:-1].view(torch.int16).int() - wanted.view(torch.int16).int()).abs()
    if apart.max() > 1 or (apart > 0).float().mean() > 0.01 or not found[-1].isnan().all():
        print(f"gated: {rows} rows of {columns}: {int((apart > 0).sum())} differ, by {int(apart.max())} at most")


def timed_alone() -> None:
    """As benchmarks/kernels/moe_layer.py launches them, with the constants that they are compiled with."""
    ids, ends, slots = (
        torch.randint(0, 8, (40, 2)),
        torch.empty(8, dtype=torch.int32),
        torch.empty(80, dtype=torch.int32),
    )
    ordered_by(ids, ends, slots)()
    if not all(map(torch.equal, (ends, slots), order_of(ids, 8))):
        print(f"ordered_by: {ends.tolist()} {slots.tolist()}")
    for scales in ("per_token", "blocks"):
        own = (("experts", 8), ("scales", scales), ("top_k", 2))
        problem = GemmProblem(5, 64, 2304, "fused_moe", "fp8e4m3fn", "fp8e4m3fn", "fp16", own=own)
        x = torch.randn(5, 2304).half()
        scale = torch.empty(18, 5).T if scales == "blocks" else torch.empty(5, 1)
        into = {"a": torch.empty(5, 2304), "scale_a": scale}
        narrowed_by(problem, x, into)()
        spread = scale.repeat_interleave(128, 1) if scales == "blocks" else scale
        if not torch.equal(into["a"], x.float() / spread) or x.isnan().any():
            print(f"narrowed_by: {scales}")


torch.manual_seed(0)
ordered(37, 8, 16, torch.int64)
ordered(1, 4, 16, torch.int32)
ordered(300, 5, 1024, torch.int64)
narrowed("per_token", 3, 144)
narrowed("blocks", 3, 400)
gated(3, 48, 96, 0, 48)
gated(5, 80, 160, 80, 0)
timed_alone()
print("done")
