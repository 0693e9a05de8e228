"""Geometry of the tiles of the CuTe DSL kernel for sm_100: shared memory, tensor memory, and parts of C."""

from __future__ import annotations

from genkern.gemm.columns import Column, either, least
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES
from genkern.kernels.cute.tile import BARRIER_BYTES, BLOCK_BYTES, MOST_BUFFERS

# Rows of a tile of one program, and of a tile that two programs share (tcgen05.mma, cta_group::1 and ::2).
ROWS = {1: (64, 128), 2: (128, 256)}
# Rows of a program's tile that keep tcgen05 fully used. With 64 rows half of tensor memory's lanes are idle (PTX ISA,
# layout F), but two programs with 64 rows each use all lanes (layout B).
FULL_ROWS = 128
# Warps that store C; warps that load and multiply (one each).
STORING_WARPS, HELPER_WARPS = 4, 2
# Tensor memory has 512 columns of 32 bits in each of 128 lanes, allocated in powers of two from 32 on (PTX ISA,
# tcgen05.alloc).
MEMORY_COLUMNS, LEAST_COLUMNS = 512, 32
# Tiles in tensor memory at the same time: one is multiplied while the other is stored.
ACCUMULATORS = 2
# Bytes of a row of a part of C: 128 if they divide a tile's row, else 64. The swizzle has the same width.
PART_BYTES, NARROW_BYTES = 128, 64
SWIZZLE_128, SWIZZLE_64 = 3, 2
DIRECT_PART = 32
# Least shared memory of a program, so that two programs never share an SM: pairs of programs on two SMs could wait for
# each other's tensor memory for ever. An SM has 228 KiB, of which each program takes 1 KiB in addition.
ALONE_BYTES = 116 * 1024
# Barriers lie before the stages: two per stage, two per accumulator, then the address of tensor memory.
MOST_STAGES = (BARRIER_BYTES - 2 * 8 * ACCUMULATORS - 8) // 16


def part_of(width: Column, element_bytes: int) -> Column:
    """Return the columns of C that a warp stores at a time, for elements of `element_bytes` bytes.

    `width` is the number of columns that lie in one row of tensor memory, a multiple of 32.
    """
    wide = PART_BYTES // element_bytes
    return either(width % wide == 0, wide, NARROW_BYTES // element_bytes)


def columns_of(block_m: int, block_n: int, ctas: int) -> int:
    """Return the columns of tensor memory that a program allocates, a power of two.

    A tile with 64 rows per program takes half of the columns of a taller tile: with layout F two tiles lie in each
    other's gaps; with layout B each has half of its columns below the other half (PTX ISA, tcgen05, data path layouts F
    and B).
    """
    used = block_n * ACCUMULATORS // (2 if block_m // ctas == 64 else 1)
    return max(LEAST_COLUMNS, 1 << (used - 1).bit_length())


def stage_bytes(block_m: Column, block_n: Column, ctas: int) -> Column:
    """Return the bytes of one stage of a program: its rows of A and its columns of B, by 128 bytes along K."""
    return (block_m + block_n) // ctas * BLOCK_BYTES


def warp_rows(block_m: Column) -> Column:
    """Return the rows of C that one warp stores. Tiles of 64 rows fill half of a warp's 32 lanes of tensor memory."""
    return least(32, block_m // STORING_WARPS)


def buffers_and_bytes(
    block_m: Column, block_n: Column, ctas: int, stages: Column, part: Column, element_bytes: int
) -> tuple[Column, Column]:
    """Return the parts of C that a warp may store at the same time, and the shared memory of a program in bytes.

    `part` is 0 if C is not stored by TMA. The bytes exclude the padding that keeps other programs off the SM.
    """
    before = BARRIER_BYTES + stages * stage_bytes(block_m, block_n, ctas)
    parts = STORING_WARPS * warp_rows(block_m) * part * element_bytes
    buffers = either(before + MOST_BUFFERS * parts <= WARPGROUP_SHARED_BYTES, MOST_BUFFERS, 1)
    return buffers, before + buffers * parts
