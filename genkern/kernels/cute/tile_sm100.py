"""What the tiles of the kernel in CuTe DSL for sm_100 are made of: shared memory, tensor memory, and parts of C."""

from __future__ import annotations

from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES
from genkern.kernels.cute.tile import BARRIER_BYTES, BLOCK_BYTES, MOST_BUFFERS

# Rows of a tile of one program, and of one that two share (tcgen05.mma, cta_group::1 and ::2).
ROWS = {1: (64, 128), 2: (128, 256)}
# Rows of a program's tile that keep tcgen05 busy: with 64 half of tensor memory's lanes are idle (PTX ISA, layout F);
# two programs with 64 rows each use all of them (layout B).
FULL_ROWS = 128
# Warps that bring C, and the two that load and multiply.
STORING_WARPS, HELPER_WARPS = 4, 2
# Tensor memory has so many columns of 32 bits for each of 128 lanes, given out as powers of two from 32 on (PTX ISA,
# tcgen05.alloc).
MEMORY_COLUMNS, LEAST_COLUMNS = 512, 32
# Tiles that are in tensor memory at a time: one is multiplied while the other goes out.
ACCUMULATORS = 2
# Columns of a part of C: rows of 128 bytes where these divide a tile, else of 64, swizzled by as many.
PART_BYTES, NARROW_BYTES = 128, 64
SWIZZLE_128, SWIZZLE_64 = 3, 2
DIRECT_PART = 32
# Two programs never share an SM: each may wait for tensor memory that another has, whose neighbour waits likewise. An
# SM has 228 KiB, of which every program takes 1 KiB besides its own.
ALONE_BYTES = 116 * 1024
# Barriers lie before the stages: two for each of these, two for each accumulator, and where tensor memory begins.
MOST_STAGES = (BARRIER_BYTES - 2 * 8 * ACCUMULATORS - 8) // 16


def part_of(width: int, element_bytes: int) -> int:
    """Columns of C, of elements of so many bytes, that a warp brings at a time, of `width` that lie in one row of it.

    `width` is a multiple of 32.
    """
    wide = PART_BYTES // element_bytes
    return wide if width % wide == 0 else NARROW_BYTES // element_bytes


def columns_of(block_m: int, block_n: int, ctas: int) -> int:
    """Columns of tensor memory of a program, as a power of two.

    Tiles whose program has 64 rows take half of what others do: two of them lie in one another's gaps, or each has one
    half of its columns below the other (PTX ISA, tcgen05, data path layouts F and B).
    """
    used = block_n * ACCUMULATORS // (2 if block_m // ctas == 64 else 1)
    return max(LEAST_COLUMNS, 1 << (used - 1).bit_length())


def stage_bytes(block_m: int, block_n: int, ctas: int) -> int:
    """Of what a program loads at a time: its rows of A and its columns of B, by 128 bytes of K."""
    return (block_m + block_n) // ctas * BLOCK_BYTES


def warp_rows(block_m: int) -> int:
    """Rows of C of which one warp has a part: of its 32 lanes of tensor memory tiles of 64 rows fill half."""
    return min(32, block_m // STORING_WARPS)


def buffers_and_bytes(
    block_m: int, block_n: int, ctas: int, stages: int, part: int, element_bytes: int
) -> tuple[int, int]:
    """Parts of C that a warp may have on their way, and shared memory of a program in bytes, but for what keeps others
    away. `part` is 0 where C is not stored by TMA.
    """
    before = BARRIER_BYTES + stages * stage_bytes(block_m, block_n, ctas)
    parts = STORING_WARPS * warp_rows(block_m) * part * element_bytes
    buffers = MOST_BUFFERS if before + MOST_BUFFERS * parts <= WARPGROUP_SHARED_BYTES else 1
    return buffers, before + buffers * parts
