"""Tests of genkern.kernels.cute.tile: how tiles are cut for shared memory."""

from __future__ import annotations

import pytest

from genkern.kernels.cute.tile import accumulators, groups_of, is_swizzled, part_of, rows_part_of

WIDTHS = range(8, 257, 8)


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_cover_a_tile(width: int) -> None:
    """Whole eights, no more than a box of the copy engine has, and little that goes out twice."""
    part = part_of(width)
    assert part % 8 == 0
    assert part <= min(width, 256)
    assert -width % part <= width / 6


@pytest.mark.parametrize("width", [width for width in WIDTHS if width > 64])
def test_eight_rows_of_a_part_lie_in_different_banks(width: int) -> None:
    """stmatrix writes 16 bytes of each of eight rows at once: in each of the eight places of 128 bytes one.

    Swizzled parts have 128 bytes a row, of which the place is exchanged with the row's number.
    """
    part = part_of(width)
    if is_swizzled(part):
        assert part * 2 == 128
    else:
        assert len({row * part * 2 % 128 for row in range(8)}) == 8


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_of_swapped_tiles(width: int) -> None:
    """Whole eights of rows, no more than 64 and few parts, and little that goes out twice."""
    part = rows_part_of(width)
    assert part % 8 == 0
    assert part <= min(width, 64)
    assert -(-width // part) <= -(-width // 64) + 2
    assert -width % part <= width / 8


@pytest.mark.parametrize(
    ("height", "ping_pong", "groups", "each"),
    [(64, False, 1, 64), (128, False, 2, 64), (256, False, 2, 128), (128, True, 2, 128)],
)
def test_groups_and_accumulators(height: int, ping_pong: bool, groups: int, each: int) -> None:
    """Of a tile 128 wide: one group for 64 rows of wgmma, two beyond, and in ping-pong a whole tile for each."""
    assert groups_of(height, ping_pong) == groups
    assert accumulators(height, 128, ping_pong) == each
