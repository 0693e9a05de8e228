"""Geometry of the tiles of the CuTe DSL kernels for sm_90: stages of A and B in shared memory, and parts of C."""

from __future__ import annotations

from genkern.gemm.columns import Column, either
from genkern.kernels.contract.gluon_tile import TURNED_BOX, Width

# Bytes along K of a block of A or B, which is the width of the swizzle.
BLOCK_BYTES = 128
# A smaller BLOCK_SIZE_K, for a ring of more and smaller stages. It is for operands that are not contiguous along K,
# whose swizzle does not lie along K.
TURNED_K = 32
# Rows of one wgmma, and the rows of it that one warp holds and stores (if they are rows of C).
ROWS, WARP_ROWS = 64, 16
# Step of a tile's width; widest wgmma; widest tile of two warpgroups side by side.
WIDTH_STEP, WIDEST, WIDEST_OF_TWO = 8, 256, 400
# Warps of a warpgroup; warps of the warpgroup that loads.
GROUP_WARPS, LOADING_WARPS = 4, 4
# Largest number of parts of C that a warp may store at the same time, if shared memory has room.
MOST_BUFFERS = 2
# Columns of a part of C that is swizzled: 128 bytes of 16-bit elements.
SWIZZLED_PART = 64
# Values of CUtensorMapSwizzle: 128 bytes, and none.
SWIZZLE_128, NO_SWIZZLE = 3, 0
# Two barriers of 8 bytes per stage lie before the first stage, which starts at a multiple of this.
BARRIER_BYTES = 1024
MOST_STAGES = BARRIER_BYTES // 16
# Largest number of accumulators of a thread, by the number of warpgroups that multiply. With one or two warpgroups a
# thread has at least 232 registers, of which some 30 hold addresses. With three, ptxas requires that each wgmma fits
# the 128 registers that a thread of 512 has before setmaxnreg raises the limit.
MOST_ACCUMULATORS = {1: 200, 2: 200, 3: 100}
# Largest number of accumulators and products of a thread that promotes. Scales of blocks take about 10 more registers.
MOST_PROMOTED = 192
# Limits for the columns of a part that is not swizzled. Longer parts use more shared memory.
_MOST_PART, _LEAST_PART = 120, 40
# Limits for the rows of a part of a swapped tile. All warps of a group fill it together, so shorter parts would make
# them wait more often.
_MOST_ROWS, _LEAST_ROWS = 64, 40


def part_of(width: int) -> int:
    """Return the columns of a tile of 16-bit C that are stored at a time.

    `width` is a multiple of 8. If the parts do not divide it, the last part starts further left and overlaps. The eight
    rows that a warp writes at once must lie in different banks, so a part is 128 bytes wide and swizzled, or 16 bytes
    times an odd number. Among these widths the one with the least overlap is chosen.
    """
    if width % SWIZZLED_PART == 0:
        return SWIZZLED_PART
    if width <= SWIZZLED_PART:
        # A narrow tile is stored whole, in some widths with bank conflicts.
        return width
    able = range(_LEAST_PART, min(_MOST_PART, width) + 1, 2 * WIDTH_STEP)
    return min(able, key=lambda part: (-width % part, -part))


def rows_part_of(width: int) -> int:
    """Return the rows of a swapped tile of 16-bit C that are stored at a time, each with 128 swizzled bytes.

    `width` is the tile's length along M, a multiple of 8. If the parts do not divide it, the last part starts further
    up and overlaps.
    """
    if width <= _MOST_ROWS:
        return width
    return min(range(_LEAST_ROWS, _MOST_ROWS + 1, WIDTH_STEP), key=lambda part: (-width % part, -part))


def is_swizzled(part: int) -> bool:
    """Whether a part with `part` columns of C lies swizzled in shared memory."""
    return part == SWIZZLED_PART


def groups_of(height: Column, width: Column, ping_pong: bool) -> Column:
    """Return the number of warpgroups that multiply, for a tile of `height` (along the 64 rows of wgmma) by `width`.

    Two warpgroups may also share a tile of height 64 for which this function returns 1.
    """
    if ping_pong:
        return 2
    return either(height == 3 * ROWS, 3, either((height > ROWS) | (width > WIDEST), 2, 1))


def left_of(width: Width, is_turned: bool) -> Width:
    """Return the columns of the left one of two warpgroups that share a tile of 64 rows: half of them or fewer.

    They are a multiple of the step of wgmma, or of boxes of 64 if the columns' operand is not contiguous along K
    (`is_turned`).
    """
    step = TURNED_BOX if is_turned else WIDTH_STEP
    return width // (2 * step) * step


def accumulators(height: Column, width: Column, groups: Column) -> Column:
    """Return the accumulators per thread if `groups` warpgroups share a tile."""
    return height * width // (128 * groups)
