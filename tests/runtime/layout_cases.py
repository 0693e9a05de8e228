"""Problems of every format in every layout that it has, and operands that lie so."""

from __future__ import annotations

import itertools

import torch

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op

M, N, K = 96, 128, 256
LAYOUTS = [*itertools.product((True, False), repeat=2)]
# Types of A, B and C; routed formats have x row-major alone, and calls of their own.
TYPES = {
    "a16w16": ("bf16", "bf16", "bf16"),
    "a16w4": ("bf16", "int8", "bf16"),
    "a16w8": ("fp16", "int8", "fp16"),
    "a4w4_blockscale": ("int8", "int8", "bf16"),
    "a8w8": ("int8", "int8", "bf16"),
    "a8w8_blockscale": ("int8", "int8", "bf16"),
    "a8w8_blockscale_bpreshuffle": ("int8", "int8", "bf16"),
    "a8w8_bpreshuffle": ("int8", "int8", "bf16"),
    "batched_a16w16": ("bf16", "bf16", "bf16"),
    "batched_a8w8": ("int8", "int8", "bf16"),
}
# How many layouts a format has where it has not all: weights that are packed or shuffled lie in one.
HAVE = {"a16w4": 2, "a4w4_blockscale": 1, "a8w8_blockscale_bpreshuffle": 2, "a8w8_bpreshuffle": 2}


def problem_of(op: str, row_major_a: bool, row_major_b: bool, m: int = M) -> GemmProblem:
    own = (("batch_size", 3),) if get_op(op).batched else ()
    return GemmProblem(m, N, K, op, *TYPES[op], row_major_a, row_major_b, own=own)


def tuned_layouts(op: str) -> list[GemmProblem]:
    """Of each layout that the format has."""
    return [
        each
        for each in itertools.starmap(lambda a, b: problem_of(op, a, b), LAYOUTS)
        if not get_op(op).refuse(each, "sm_90")
    ]


def laid(shape: tuple[int, ...], dtype: str, row_major: bool, gap: int = 0) -> torch.Tensor:
    """Small integers that lie so; `gap` elements lie between the rows in memory."""
    *batch, rows, columns = shape if row_major else (*shape[:-2], shape[-1], shape[-2])
    room = torch.randint(-3, 4, (*batch, rows, columns + gap)).to(getattr(torch, DTYPES[dtype].torch))
    stored = room[..., :columns]
    return stored if row_major else stored.mT


def operands(problem: GemmProblem, gap: int = 0) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """x, weight and scales of one, as a call of this problem's format takes them."""
    a, b, _, *extra = get_op(problem.op).operands(problem)
    *batch, k, n = b.shape
    x = laid(a.tensor_shape, a.dtype, problem.row_major_a, gap)
    weight = laid((*batch, n, k // b.packed), b.dtype, not problem.row_major_b, gap)
    # An exponent of a byte is 127 for a scale of one.
    scales = {
        each.name: torch.full(
            each.tensor_shape, 127 if each.dtype == "int8" else 1, dtype=getattr(torch, DTYPES[each.dtype].torch)
        )
        for each in extra
    }
    return x, weight, scales
