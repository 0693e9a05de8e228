"""Tests of genkern.kernels.cute.tile: how tiles are cut for shared memory."""

from __future__ import annotations

import pytest

from genkern.kernels.cute.tile import accumulators, groups_of, is_swizzled, left_of, part_of, rows_part_of

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
    ("height", "width", "ping_pong", "groups", "each"),
    [
        (64, 128, False, 1, 64),
        (128, 128, False, 2, 64),
        (192, 200, False, 3, 100),
        (256, 128, False, 2, 128),
        (128, 128, True, 2, 128),
        (64, 256, False, 1, 128),
        (64, 272, False, 2, 68),
    ],
)
def test_groups_and_accumulators(height: int, width: int, ping_pong: bool, groups: int, each: int) -> None:
    """One group for 64 rows, three for 192, else two, as for more columns than one has; in ping-pong a tile each."""
    assert groups_of(height, width, ping_pong) == groups
    assert accumulators(height, width, 1 if ping_pong else groups) == each


@pytest.mark.parametrize("width", range(16, 401, 8))
def test_the_left_of_two_groups(width: int) -> None:
    """It has no more than the right one, by less than it must; whole boxes of 64 where they are held so."""
    assert left_of(width, False) % 8 == 0
    assert 0 <= width - 2 * left_of(width, False) <= 8
    assert left_of(width, True) % 64 == 0
    assert 0 <= width - 2 * left_of(width, True) < 128
