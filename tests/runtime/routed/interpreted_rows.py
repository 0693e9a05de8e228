"""Runs templates/rows/kernels.py under Triton's interpreter, for test_row_kernels: a line for what differs."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from genkern.kernels.cute.source_file import path_of
from genkern.kernels.source import load_module
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_kernels import FILE

kernels = load_module(str(path_of(FILE)))


def ordered(rows: int, groups: int, block: int, dtype: torch.dtype) -> None:
    ids = torch.randint(0, groups, (rows,), dtype=dtype)
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


torch.manual_seed(0)
ordered(37, 8, 16, torch.int64)
ordered(1, 4, 16, torch.int32)
ordered(300, 5, 1024, torch.int64)
narrowed("per_token", 3, 144)
narrowed("blocks", 3, 400)
print("done")
