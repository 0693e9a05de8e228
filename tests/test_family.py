"""Tests of genkern.family: sides and rings of the families in Gluon, and the blocks that each family takes."""

from __future__ import annotations

import pytest

from genkern.config import Config
from genkern.family import FAMILIES, GLUON, block_problem, powers_of, ring_of, sides

WIDTHS = range(8, 257, 8)


@pytest.mark.parametrize("width", WIDTHS)
def test_powers_add_up(width: int) -> None:
    """A width is the sum of its powers, which are distinct powers of two, largest first, none below 8."""
    powers = powers_of(width)
    assert sum(powers) == width
    assert list(powers) == sorted(set(powers), reverse=True)
    assert all(power & (power - 1) == 0 and power >= 8 for power in powers)


@pytest.mark.parametrize("rows", [64, 128, 256])
@pytest.mark.parametrize("width", WIDTHS)
def test_copies_fill_a_buffer(width: int, rows: int) -> None:
    """With any Triton, copies bring all rows and at least all columns, in powers of two that are whole blocks."""
    for views_may_grow in (True, False):
        ring = ring_of(rows, width, views_may_grow)
        assert (sum(ring.row_copies), sum(ring.column_copies)) == (ring.rows, ring.columns)
        assert ring.rows == rows
        assert width <= ring.columns < width + 16
        copies = (*ring.row_copies, *ring.column_copies)
        assert all(count & (count - 1) == 0 and count % ring.block == 0 for count in copies)
        # The 8 rows that are swizzled together, and what a box may have.
        assert ring.block % 8 == 0
        assert max(copies) <= 256
        assert ring.bytes_per_buffer == (ring.rows + ring.columns) * 64 * 2


@pytest.mark.parametrize("width", WIDTHS)
def test_views_that_may_not_grow_are_blocks(width: int) -> None:
    """Then each copy brings one block, of 16 rows at least; else there are few copies and no column too many."""
    stays, grows = ring_of(128, width, views_may_grow=False), ring_of(128, width, views_may_grow=True)
    assert {*stays.row_copies, *stays.column_copies} == {stays.block}
    assert stays.block >= 16
    assert (grows.block, grows.columns, grows.row_copies) == (8, width, (128,))
    assert grows.column_copies == powers_of(width)


@pytest.mark.parametrize(
    ("rows", "width", "block", "columns"),
    [(64, 48, 16, 48), (128, 128, 128, 128), (64, 256, 64, 256), (128, 160, 32, 160), (128, 104, 16, 112)],
)
def test_blocks_are_as_large_as_both_sides_allow(rows: int, width: int, block: int, columns: int) -> None:
    """The largest power of two that divides the rows and the columns, the latter rounded up to 16."""
    ring = ring_of(rows, width, views_may_grow=False)
    assert (ring.block, ring.columns) == (block, columns)
    assert (len(ring.row_copies), len(ring.column_copies)) == (rows // block, columns // block)


@pytest.mark.parametrize(("release", "grows"), [((3, 6), True), ((3, 7), True), ((3, 8), False), ((4, 0), False)])
def test_the_installed_triton_decides(monkeypatch: pytest.MonkeyPatch, release: tuple[int, int], grows: bool) -> None:
    """Views may be larger than what they are made from before Triton 3.8."""
    monkeypatch.setattr("genkern.family.triton_release", lambda: release)
    assert ring_of(64, 112) == ring_of(64, 112, views_may_grow=grows)
    assert ring_of(64, 112, views_may_grow=True) != ring_of(64, 112, views_may_grow=False)


def test_sides() -> None:
    """wgmma's 64 rows go along M, or with swapped operands along N; what is left is the width."""
    assert sides(Config("warp_specialized", 128, 48, 64)) == (128, 48)
    assert sides(Config("warp_specialized_swapped", 48, 128, 64)) == (128, 48)


@pytest.mark.parametrize(
    ("family", "field", "good", "bad"),
    [
        ("tiled", "BLOCK_SIZE_M", 16, 8),
        ("tiled", "BLOCK_SIZE_N", 64, 48),
        ("gemv", "BLOCK_SIZE_M", 1, 0),
        ("gemv", "BLOCK_SIZE_K", 1024, 2048),
        ("warp_specialized", "BLOCK_SIZE_N", 16, 8),
        ("warp_specialized", "BLOCK_SIZE_N", 160, 24),
        ("warp_specialized", "BLOCK_SIZE_N", 256, 272),
        ("warp_specialized", "BLOCK_SIZE_M", 128, 160),
        ("warp_specialized", "BLOCK_SIZE_K", 64, 128),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 8, 4),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 104, 100),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 256, 264),
        ("warp_specialized_swapped", "BLOCK_SIZE_N", 128, 104),
        ("warp_specialized_swapped", "BLOCK_SIZE_K", 64, 32),
    ],
)
def test_blocks_by_family(family: str, field: str, good: int, bad: int) -> None:
    """At each family's border one block size is taken and the other refused with a reason."""
    assert block_problem(family, field, good) == ""
    assert str(bad) in block_problem(family, field, bad)


@pytest.mark.parametrize(
    ("family", "field", "value", "message"),
    [
        ("warp_specialized", "BLOCK_SIZE_N", 24, "24 is not a multiple of 16 up to 256"),
        ("warp_specialized", "BLOCK_SIZE_N", 512, "512 is not a multiple of 16 up to 256"),
        ("warp_specialized", "BLOCK_SIZE_M", 96, "96 is not a power of two, which Triton needs"),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 20, "20 is not a multiple of 8 up to 256"),
        ("warp_specialized_swapped", "BLOCK_SIZE_N", 96, "96 is not a power of two, which Triton needs"),
        ("warp_specialized", "BLOCK_SIZE_K", 128, "128 is not 64, the 128 bytes that a row of the ring has"),
        ("warp_specialized", "BLOCK_SIZE_M", 2048, "2048 is not from 16 to 1024"),
    ],
)
def test_reasons(family: str, field: str, value: int, message: str) -> None:
    """The reason says what the value would have to be."""
    assert block_problem(family, field, value) == message


def test_names() -> None:
    """The table finds each family under its own name, and those with a width of any kind are the ones in Gluon."""
    assert all(name == family.name for name, family in FAMILIES.items())
    both = "warp_specialized", "warp_specialized_swapped"
    assert set(GLUON) == {*both, *(f"{name}_cluster{size}" for name in both for size in (2, 4))}
