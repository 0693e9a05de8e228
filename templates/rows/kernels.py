"""Kernels beside the products of a layer: rows by groups, rows in 8 bits, and gated rows. Plain Triton, the same for
every size.

genkern.runtime.routed.row_kernels says with which types and constants they are compiled, and how they are launched.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def order_rows(ids_ptr, ends_ptr, slots_ptr, rows, BLOCK_SIZE: tl.constexpr):
    """A program for each group: where its rows end, of rows whose groups are `ids`, and which they are, in order.

    Each reads all ids twice: first to know where its rows begin, then to write them there. An id that is no group's
    counts as that of the nearest one, so that every row has a place.
    """
    group, last = tl.program_id(0), tl.num_programs(0) - 1
    offs = tl.arange(0, BLOCK_SIZE)
    before = tl.zeros((BLOCK_SIZE,), tl.int32)
    own = tl.zeros((BLOCK_SIZE,), tl.int32)
    for start in range(0, rows, BLOCK_SIZE):
        is_row = start + offs < rows
        ids = tl.load(ids_ptr + start + offs, mask=is_row, other=0)
        ids = tl.where(is_row, tl.minimum(tl.maximum(ids, 0), last), last + 1)
        before += (ids < group).to(tl.int32)
        own += (ids == group).to(tl.int32)
    place = tl.sum(before, 0)
    tl.store(ends_ptr + group, place + tl.sum(own, 0))
    for start in range(0, rows, BLOCK_SIZE):
        is_row = start + offs < rows
        ids = tl.load(ids_ptr + start + offs, mask=is_row, other=0)
        mine = (is_row & (tl.minimum(tl.maximum(ids, 0), last) == group)).to(tl.int32)
        tl.store(slots_ptr + place + tl.cumsum(mine, 0) - mine, start + offs, mask=mine > 0)
        place += tl.sum(mine, 0)


@triton.jit
def quantize_rows(x_ptr, found_ptr, scale_ptr, columns, MOST: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """A program for each row of x: divided by its scale, which makes its largest magnitude MOST."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_SIZE)
    largest = tl.zeros((BLOCK_SIZE,), tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        x = tl.load(x_ptr + row * columns + start + offs, mask=start + offs < columns, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, 0), 1e-12) * (1.0 / MOST)
    tl.store(scale_ptr + row, scale)
    for start in range(0, columns, BLOCK_SIZE):
        here = row * columns + start + offs
        x = tl.load(x_ptr + here, mask=start + offs < columns, other=0.0).to(tl.float32)
        found = tl.div_rn(x, tl.broadcast_to(scale, (BLOCK_SIZE,)))
        tl.store(found_ptr + here, found.to(found_ptr.dtype.element_ty), mask=start + offs < columns)


@triton.jit
def quantize_blocks(
    x_ptr, found_ptr, scale_ptr, rows, columns, MOST: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """A program for BLOCKS blocks of a row, each divided by its own scale; scales lie column by column."""
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    offs = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + row * columns + offs, mask=offs < columns, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-12) * (1.0 / MOST)
    tl.store(scale_ptr + blocks.to(tl.int64) * rows + row, scale, mask=blocks * BLOCK < columns)
    found = tl.div_rn(x, tl.broadcast_to(scale[:, None], (BLOCKS, BLOCK)))
    tl.store(found_ptr + row * columns + offs, found.to(found_ptr.dtype.element_ty), mask=offs < columns)


@triton.jit
def gate_rows(gate_ptr, up_ptr, found_ptr, gate, up, pitch, columns, BLOCK_SIZE: tl.constexpr):
    """A program for BLOCK_SIZE columns of a row: silu(gate) * up, each rounded as PyTorch's calls round it.

    Both lie in rows that begin `pitch` elements apart, from column `gate` and column `up` on, of one tensor or of two.
    """
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_column = offs < columns
    x = tl.load(gate_ptr + row * pitch + gate + offs, mask=is_column, other=0.0).to(tl.float32)
    by = tl.load(up_ptr + row * pitch + up + offs, mask=is_column, other=0.0).to(tl.float32)
    # The exponential function and the division that PyTorch's kernel has too: the same bits.
    gated = tl.div_rn(x, 1.0 + libdevice.exp(-x)).to(found_ptr.dtype.element_ty).to(tl.float32)
    tl.store(found_ptr + row * columns + offs, (gated * by).to(found_ptr.dtype.element_ty), mask=is_column)
