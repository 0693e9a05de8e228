"""What the tiles of the kernels in Gluon are made of: buffers of a ring, and parts that copies take to C."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, TypeVar

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.kernels.expression import Expression

# Bytes along K of a buffer of a Gluon kernel's ring: those that are swizzled.
RING_BYTES = 128
# Rows or columns of one copy of an operand that runs along them: 128 bytes of 16-bit elements.
TURNED_BOX = 64
# int8 is multiplied in widths by so many above the second number (PTX ISA, "wgmma.mma_async": .nN of .s8).
_INT8_WIDTHS = (16, 32)
# What a box of TMA has along one side (cuTensorMapEncodeTiled, boxDim).
_MOST_BOX = 256
# 16 rows of a tile for each multiplying warp, once or twice: the kernels have one or two products a buffer. wgmma is
# issued by whole groups of warps.
_WARP_ROWS, _MOST_PRODUCTS, _GROUP_WARPS = 16, 2, 4
# Rows or columns that are swizzled together.
EIGHT = 8
# Two barriers of 8 bytes for each buffer, and one for a cluster's sums, are in a block behind the ring.
BLOCK_BYTES = 1024
MOST_BUFFERS = 62
# Scales in a line of 16 bytes.
_LINE_SCALES = 4
# Columns that go to C at a time where all of them would take the place of a buffer of the ring.
STORED = (64, 32)
# Columns of the widest wgmma.
WIDEST = 256
Width = TypeVar("Width", int, Expression)


# The text of the next two is in generated modules as well, where kernels and launches ask them.
def powers_of(width: int) -> tuple[int, ...]:
    """The powers of two, largest first, that add up to a multiple of 8 up to 256."""
    return tuple(1 << bit for bit in range(8, 2, -1) if width & (1 << bit))


def parts_of(width: int, cluster: int = 1, most: int = 256) -> tuple[tuple[int, int, int], ...]:
    """(program of the cluster, first column, columns) of what each copy takes to C.

    Each program has a share of the columns, by eights, which is cut into powers of two up to `most`, largest first.
    """
    parts = []
    for owner in range(cluster):
        first, last = (8 * (width // 8 * number // cluster) for number in (owner, owner + 1))
        for size in (most,) * ((last - first) // most) + powers_of((last - first) % most):
            parts.append((owner, first, size))
            first += size
    return tuple(parts)


def ring_k(element_bytes: int) -> int:
    """Elements along K of a buffer of a Gluon kernel's ring."""
    return RING_BYTES // element_bytes


def turned(problem: GemmProblem, swapped: bool) -> tuple[bool, bool]:
    """Whether the rows that wgmma goes along, and the columns, are an operand's that runs along them, not along K."""
    along_m, along_n = not problem.row_major_a, problem.row_major_b
    return (along_n, along_m) if swapped else (along_m, along_n)


def columns_held(width: Width, turned: bool) -> Width:
    """Columns in a buffer of a ring: whole blocks of 64 where their operand does not run along K."""
    return (width + (TURNED_BOX - 1)) // TURNED_BOX * TURNED_BOX if turned else width


def buffer_bytes(rows: int, width: int, turned: bool = False) -> int:
    """Of one buffer of a ring: 128 for each row and column; `turned` as in columns_held."""
    return (rows + columns_held(width, turned)) * RING_BYTES


def scale_bytes(rows: int, width: int, swapped: bool, block_n: int) -> int:
    """Of a buffer's scales where products are promoted, in whole blocks: float32, for each row of A, and those of B.

    Of B there are as many as a swapped tile has rows, or an upright one may have blocks of `block_n` columns; those of
    an upright one's rows come in whole lines of 16 bytes, with what lies before and behind them.
    """
    first_in_block = block_n - math.gcd(width, block_n)
    scales = width + rows if swapped else rows + _LINE_SCALES + -(-(first_in_block + width) // block_n)
    return -(-4 * scales // BLOCK_BYTES) * BLOCK_BYTES


def landing_bytes(rows: int, width: int, cluster: int) -> int:
    """Of shared memory where a program of a cluster finds the others' sums of the columns that it stores, 4 each."""
    return (cluster - 1) * rows * 8 * -(-width // (8 * cluster)) * 4


class Tile(NamedTuple):
    """What a tile takes of shared memory: in bytes, but for the buffers of its ring that are filled `together`.

    `behind_ring`: a block for the barriers, and whole blocks for other programs' sums. `part_bytes`: C's largest part.
    """

    together: int
    buffer_bytes: int
    behind_ring: int
    part_bytes: int
    c_bytes: int


# Once for all numbers of stages, of which spaces have ten.
@lru_cache(maxsize=16_384)
def tile_of(
    rows: int,
    width: int,
    block_k: int,
    warps: int,
    dtype_a: str,
    dtype_c: str,
    are_turned: tuple[bool, bool],
    cluster: int,
    neighbours: tuple[int, int],
) -> Tile | str:
    """The tile, or why it is none for wgmma. `are_turned` as turned says; `cluster` programs share its K.

    `neighbours`: programs that have tiles side by side, along the rows and along the columns.
    """
    if warps % _GROUP_WARPS:
        return "wgmma is for groups of four warps"
    products, rest = divmod(rows, _WARP_ROWS * warps)
    if rest or not 1 <= products <= _MOST_PRODUCTS:
        return "the rows that wgmma goes along are 16 or 32 for each warp"
    if rows > _MOST_BOX:
        return f"the rows that wgmma goes along are more than the {_MOST_BOX} of a box of TMA"
    step, narrow = _INT8_WIDTHS
    if DTYPES[dtype_a].is_integer and width > narrow and width % step:
        return f"of int8 wgmma multiplies {narrow} columns, or multiples of {step}"
    down, across = neighbours
    rows_turned, columns_turned = are_turned
    if columns_turned and columns_held(width, columns_turned) % (TURNED_BOX * down):
        return "the columns that programs of a cluster share cannot be dealt out to them"
    if rows_turned and rows % (TURNED_BOX * across):
        return "the rows that programs of a cluster share cannot be dealt out to them"
    together, rest = divmod(block_k, ring_k(DTYPES[dtype_a].size_bytes))
    if rest or not together:
        return "BLOCK_SIZE_K is not whole rows of 128 bytes, as the ring has them"
    if together > 1 and neighbours != (1, 1):
        return "programs that load for one another fill one buffer at a time: BLOCK_SIZE_K is 128 bytes of a row"
    element_bytes = DTYPES[dtype_c].size_bytes
    others = -(-landing_bytes(rows, width, cluster) // BLOCK_BYTES) * BLOCK_BYTES
    largest_part = powers_of(EIGHT * -(-width // (EIGHT * cluster)))[0]
    part_bytes, c_bytes = rows * largest_part * element_bytes, rows * width * element_bytes
    return Tile(together, buffer_bytes(rows, width, columns_turned), BLOCK_BYTES + others, part_bytes, c_bytes)
