"""Shared memory of a tile of the Gluon kernels: buffers of the ring, and the parts in which C is stored."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, TypeVar

from genkern.gemm.columns import Column, Refusals, mapped, negated, within
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.expression import Expression

# Bytes along K of one buffer of the ring, which is the width of the 128-byte swizzle.
RING_BYTES = 128
# Rows or columns that one TMA copy loads of an operand that is not contiguous along K: 128 bytes of 16-bit elements.
TURNED_BOX = 64
# wgmma multiplies int8 in widths that are multiples of the first number, above the second (PTX ISA, "wgmma.mma_async":
# .nN of .s8).
_INT8_WIDTHS = (16, 32)
# Largest side of a TMA box (cuTensorMapEncodeTiled, boxDim).
_MOST_BOX = 256
# A tile has 16 rows per multiplying warp, once or twice: the kernels have code for one or two products per buffer.
# wgmma is issued by groups of four warps.
_WARP_ROWS, _MOST_PRODUCTS, _GROUP_WARPS = 16, 2, 4
# Rows or columns in one repetition of the swizzle.
EIGHT = 8
# Each buffer has two barriers of 8 bytes, and a cluster has one more for its sums. They lie in a block behind the ring.
BLOCK_BYTES = 1024
MOST_BUFFERS = 62
# Scales (float32) in a line of 16 bytes.
_LINE_SCALES = 4
# Columns of C that are stored at a time if staging all of them would take the place of a buffer of the ring.
STORED = (64, 32)
# Columns of the widest wgmma instruction.
WIDEST = 256
Width = TypeVar("Width", int, Expression)


# The texts of the next two functions are copied into generated modules, whose kernels and launches call them.
def powers_of(width: int) -> tuple[int, ...]:
    """Return the powers of two, largest first, that add up to `width`, a multiple of 8."""
    return tuple(1 << bit for bit in range(8, 2, -1) if width & (1 << bit))


def parts_of(width: int, cluster: int = 1, most: int = 256) -> tuple[tuple[int, int, int], ...]:
    """Return (program of the cluster, first column, columns) for each part of a tile that is stored to C by one copy.

    Each of the `cluster` programs has a share of the columns. Shares are multiples of 8 and differ by 8 at most. A
    share is cut into powers of two up to `most`, largest first.
    """
    parts = []
    for owner in range(cluster):
        first, last = (8 * (width // 8 * number // cluster) for number in (owner, owner + 1))
        for size in (most,) * ((last - first) // most) + powers_of((last - first) % most):
            parts.append((owner, first, size))
            first += size
    return tuple(parts)


def ring_k(element_bytes: int) -> int:
    """Return the elements along K of one buffer of the ring."""
    return RING_BYTES // element_bytes


def turned(problem: GemmProblem, swapped: bool) -> tuple[bool, bool]:
    """Return (rows are turned, columns are turned).

    The operand along wgmma's rows (or columns) is turned if it is contiguous along them instead of along K.
    """
    along_m, along_n = not problem.row_major_a, problem.row_major_b
    return (along_n, along_m) if swapped else (along_m, along_n)


def columns_held(width: Width, turned: bool) -> Width:
    """Return the columns in one buffer of the ring: whole blocks of 64 if their operand is not contiguous along K."""
    return (width + (TURNED_BOX - 1)) // TURNED_BOX * TURNED_BOX if turned else width


def buffer_bytes(rows: Column, width: Column, turned: bool = False) -> Column:
    """Return the size of one buffer of the ring: 128 bytes per row and per column. See `columns_held` for `turned`."""
    return (rows + columns_held(width, turned)) * RING_BYTES


def scale_bytes(rows: Column, width: Column, swapped: bool, block_n: int) -> Column:
    """Return the bytes of scales (float32) beside one buffer if products are promoted, rounded up to whole blocks.

    A has one scale per row. B has one per row of a swapped tile, or one per `block_n` columns that an upright tile may
    touch. The scales of an upright tile's rows are copied in lines of 16 bytes, which may include scales before and
    after the tile.
    """
    first_in_block = block_n - mapped(functools.partial(math.gcd, block_n), width)
    scales = width + rows if swapped else rows + _LINE_SCALES + -(-(first_in_block + width) // block_n)
    return -(-4 * scales // BLOCK_BYTES) * BLOCK_BYTES


def landing_bytes(rows: Column, width: Column, cluster: int) -> Column:
    """Return the shared memory for the partial sums (4 bytes each) that a program receives from others of its cluster.

    A program receives the columns that it stores.
    """
    return (cluster - 1) * rows * 8 * -(-width // (8 * cluster)) * 4


class Tile(NamedTuple):
    """Shared memory that tiles need: numbers of one tile, or columns of a table of configs.

    together: buffers of the ring that are filled together.
    buffer_bytes: size of one buffer.
    behind_ring: bytes for the barriers and for partial sums of other programs, in whole blocks.
    part_bytes: size of the largest part of C.
    c_bytes: size of the whole tile of C.
    """

    together: Column
    buffer_bytes: Column
    behind_ring: Column
    part_bytes: Column
    c_bytes: Column


def tile_refusals(
    rows: Column,
    width: Column,
    block_k: Column,
    warps: Column,
    dtype_a: str,
    are_turned: tuple[bool, bool],
    neighbours: tuple[int, int],
) -> Refusals:
    """Refuse tiles that wgmma cannot compute.

    rows: length of the tile along wgmma's rows.
    width: length along its columns.
    are_turned: as `turned` returns it.
    neighbours: number of programs with tiles side by side, along the rows and along the columns.
    """
    yield warps % _GROUP_WARPS != 0, "num_warps is no multiple of four: wgmma is issued by groups of four warps"
    products = rows // (_WARP_ROWS * warps)
    yield (
        (rows % (_WARP_ROWS * warps) != 0) | negated(within(1, products, _MOST_PRODUCTS)),
        "a tile must have 16 or 32 rows of wgmma per warp",
    )
    yield rows > _MOST_BOX, f"the side along wgmma's rows is longer than a TMA box, {_MOST_BOX}"
    if DTYPES[dtype_a].is_integer:
        step, narrow = _INT8_WIDTHS
        yield (
            (width > narrow) & (width % step != 0),
            f"wgmma multiplies int8 in widths of up to {narrow} columns, or in multiples of {step}",
        )
    down, across = neighbours
    rows_turned, columns_turned = are_turned
    if columns_turned:
        yield (
            columns_held(width, columns_turned) % (TURNED_BOX * down) != 0,
            f"the columns that a cluster's programs load for each other are no multiple of {TURNED_BOX * down}",
        )
    if rows_turned:
        yield (
            rows % (TURNED_BOX * across) != 0,
            f"the rows that a cluster's programs load for each other are no multiple of {TURNED_BOX * across}",
        )
    together = block_k // ring_k(DTYPES[dtype_a].size_bytes)
    yield (
        (block_k % ring_k(DTYPES[dtype_a].size_bytes) != 0) | (together == 0),
        f"BLOCK_SIZE_K is no multiple of {RING_BYTES} bytes, the length of the ring's rows",
    )
    if neighbours != (1, 1):
        yield (
            together > 1,
            "programs that load for each other fill one buffer at a time: BLOCK_SIZE_K must be 128 bytes",
        )


def tile_of(
    rows: Column, width: Column, block_k: Column, dtype_a: str, dtype_c: str, columns_turned: bool, cluster: int
) -> Tile:
    """Return the shared memory of tiles that `tile_refusals` does not refuse.

    `cluster` is the number of programs that share a tile's K; see `tile_refusals` for the other arguments.
    """
    together = block_k // ring_k(DTYPES[dtype_a].size_bytes)
    element_bytes = DTYPES[dtype_c].size_bytes
    others = -(-landing_bytes(rows, width, cluster) // BLOCK_BYTES) * BLOCK_BYTES
    part_bytes = rows * mapped(_largest_part, EIGHT * -(-width // (EIGHT * cluster))) * element_bytes
    c_bytes = rows * width * element_bytes
    return Tile(together, buffer_bytes(rows, width, columns_turned), BLOCK_BYTES + others, part_bytes, c_bytes)


def _largest_part(width: int) -> int:
    # Widths that no tile has may occur in a table; their parts do not matter.
    return next(iter(powers_of(width)), 0)
