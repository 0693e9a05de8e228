"""Tests of genkern.kernels.cute.tile_sm100: what tiles for tcgen05 take of shared and of tensor memory."""

from __future__ import annotations

import pytest

from genkern.kernels.cute import tile_sm100 as tile
from genkern.kernels.cute.tile import BARRIER_BYTES


@pytest.mark.parametrize(
    ("block_m", "block_n", "ctas", "columns"),
    # Two accumulators of N columns; tiles with 64 rows in a program lie in half of them.
    [(128, 256, 1, 512), (128, 96, 1, 256), (256, 32, 2, 64), (64, 96, 1, 128), (64, 32, 1, 32), (128, 128, 2, 128)],
)
def test_columns_of_tensor_memory(block_m: int, block_n: int, ctas: int, columns: int) -> None:
    """A power of two, as it is given out, of what two accumulators take."""
    assert tile.columns_of(block_m, block_n, ctas) == columns <= tile.MEMORY_COLUMNS


def test_parts() -> None:
    """Parts divide their tile, and have rows of 128 or of 64 bytes, as there are swizzles for."""
    for width in range(32, 257, 32):
        for size in (2, 4):
            part = tile.part_of(width, size)
            assert width % part == 0
            assert part * size in (tile.PART_BYTES, tile.NARROW_BYTES)
    assert (tile.part_of(96, 2), tile.part_of(192, 2), tile.part_of(96, 4)) == (32, 64, 32)


def test_two_programs_never_share_an_sm() -> None:
    """Of the 228 KiB of an SM two take more, with the 1 KiB that each takes besides; one fits."""
    assert 2 * (tile.ALONE_BYTES + 1024) > 228 * 1024 > tile.ALONE_BYTES + 1024


def test_barriers_have_room() -> None:
    """Two of 8 bytes for each stage and each accumulator, and the address of tensor memory."""
    assert 16 * tile.MOST_STAGES + 16 * tile.ACCUMULATORS + 4 <= BARRIER_BYTES


def test_each_warp_has_two_buffers_to_store_from_if_they_fit() -> None:
    """Two parts on their way for each warp where there is room, else one."""
    assert tile.buffers_and_bytes(128, 128, 1, 4, 64, 2) == (2, 1024 + 4 * 32768 + 2 * 16384)
    assert tile.buffers_and_bytes(256, 192, 2, 7, 64, 2) == (1, 1024 + 7 * 28672 + 16384)
    assert tile.buffers_and_bytes(64, 128, 1, 4, 0, 2) == (2, 1024 + 4 * 24576)
