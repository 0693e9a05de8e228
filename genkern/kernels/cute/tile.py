"""What the tiles of the kernels in CuTe DSL are made of: stages of A and B in shared memory, and parts of C."""

from __future__ import annotations

from genkern.kernels.families.gluon_tile import TURNED_BOX, Width

# Bytes along K of a block of A or B, which shared memory holds swizzled by as many.
BLOCK_BYTES = 128
# Less of K, for a ring of more and smaller stages: swizzles lie across it where operands do not run along it.
TURNED_K = 32
# Rows of one wgmma, and those of them that a warp holds and, where they are rows of C, brings there.
ROWS, WARP_ROWS = 64, 16
# What a tile's other side goes by, the widest wgmma, and the widest tile of two groups beside each other.
WIDTH_STEP, WIDEST, WIDEST_OF_TWO = 8, 256, 400
# Threads of a warpgroup, in warps; one group loads.
GROUP_WARPS, LOADING_WARPS = 4, 4
# Parts of C that each warp may have on their way at once, where there is room for as many.
MOST_BUFFERS = 2
# Columns of a part that is swizzled: 128 bytes of 16-bit elements.
SWIZZLED_PART = 64
# CUtensorMapSwizzle of 128 bytes, and of none.
SWIZZLE_128, NO_SWIZZLE = 3, 0
# Two barriers of 8 bytes for each stage lie before the first one, which begins at a multiple of this.
BARRIER_BYTES = 1024
MOST_STAGES = BARRIER_BYTES // 16
# Accumulators of a thread, by how many groups multiply. One or two leave it 232 registers and more, some 30 of which
# hold addresses; of three ptxas wants each wgmma to fit the 128 that a thread of 512 has before it may have more.
MOST_ACCUMULATORS = {1: 200, 2: 200, 3: 100}
# The same where scales of blocks are read meanwhile, some 10 more registers, products among them.
MOST_PROMOTED = 192
# Columns of a part that is not swizzled: longer ones keep more of C in shared memory.
_MOST_PART, _LEAST_PART = 120, 40
# Rows of a part of a swapped tile, which all warps of a group fill together: fewer would let them wait more often.
_MOST_ROWS, _LEAST_ROWS = 64, 40


def part_of(width: int) -> int:
    """Columns of a tile of 16-bit C that go out at a time; the last part begins further left where they do not divide.

    `width` is a multiple of 8. Eight rows that a warp writes at once must lie in different banks: 128 bytes that are
    swizzled, or 16 bytes times an odd number. Of these the one by which the fewest columns go out twice.
    """
    if width % SWIZZLED_PART == 0:
        return SWIZZLED_PART
    if width <= SWIZZLED_PART:
        # Narrow tiles go out whole, some with conflicts of banks.
        return width
    able = range(_LEAST_PART, min(_MOST_PART, width) + 1, 2 * WIDTH_STEP)
    return min(able, key=lambda part: (-width % part, -part))


def rows_part_of(width: int) -> int:
    """Rows of a swapped tile of 16-bit C, whose width is along M, that go out at a time, each with 128 bytes, swizzled.

    The last part begins further up where they do not divide. `width` is a multiple of 8.
    """
    if width <= _MOST_ROWS:
        return width
    return min(range(_LEAST_ROWS, _MOST_ROWS + 1, WIDTH_STEP), key=lambda part: (-width % part, -part))


def is_swizzled(part: int) -> bool:
    """Whether a part of so many columns of C lies swizzled in shared memory."""
    return part == SWIZZLED_PART


def groups_of(height: int, width: int, ping_pong: bool) -> int:
    """Warpgroups that multiply; of a tile's sides `height` is the one that the 64 rows of wgmma go along.

    Two may share one of 64 that is narrower, too.
    """
    if height == 3 * ROWS and not ping_pong:
        return 3
    return 2 if ping_pong or height > ROWS or width > WIDEST else 1


def left_of(width: Width, is_turned: bool) -> Width:
    """Of a tile of 64 rows that two groups share, the left one's columns, at most the right one's.

    Half, by wgmma's step; whole boxes of 64 where the operand of the columns does not run along K (`is_turned`).
    """
    step = TURNED_BOX if is_turned else WIDTH_STEP
    return width // (2 * step) * step


def accumulators(height: int, width: int, groups: int) -> int:
    """Of a thread, where so many groups share a tile."""
    return height * width // (128 * groups)
