"""Tests of genkern.kernels.family: sides and rings of the families in Gluon, and the blocks that each family takes."""

from __future__ import annotations

import pytest
from forms import RINGS

from genkern.gemm.config import Config
from genkern.kernels.catalogue import block_problem, sides
from genkern.kernels.families.gluon_tile import buffer_bytes, landing_bytes, powers_of

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
def test_a_buffer_holds_a_block_of_k_of_both_sides(width: int, rows: int) -> None:
    """64 elements of 2 bytes for each row and column, in whole blocks of the 8 rows that are swizzled together."""
    assert buffer_bytes(rows, width) == (rows + width) * 64 * 2
    assert buffer_bytes(rows, width) % 1024 == 0


@pytest.mark.parametrize(
    ("cluster", "expected"), [(1, 0), (2, 64 * 56 * 4), (4, 3 * 64 * 32 * 4), (8, 7 * 64 * 16 * 4)]
)
def test_sums_land_from_every_other_program(cluster: int, expected: int) -> None:
    """A float32 for each element of what one program stores: 104 columns by eights, in shares that differ by one."""
    assert landing_bytes(64, 104, cluster) == expected


def test_sides() -> None:
    """wgmma's 64 rows go along M, or with swapped operands along N; what is left is the width."""
    assert sides(Config("warp_specialized", 128, 48, 64)) == (128, 48)
    assert sides(Config("warp_specialized", 48, 128, 64, swapped=1)) == (128, 48)


@pytest.mark.parametrize(
    ("family", "field", "good", "bad"),
    [
        ("tiled", "BLOCK_SIZE_M", 16, 8),
        ("tiled", "BLOCK_SIZE_N", 64, 48),
        ("gemv", "BLOCK_SIZE_M", 1, 0),
        ("gemv", "BLOCK_SIZE_K", 8192, 16384),
        ("tiled", "BLOCK_SIZE_K", 1024, 2048),
        ("warp_specialized", "BLOCK_SIZE_N", 16, 8),
        ("warp_specialized", "BLOCK_SIZE_N", 160, 24),
        ("warp_specialized", "BLOCK_SIZE_N", 256, 272),
        ("warp_specialized", "BLOCK_SIZE_M", 128, 160),
        ("warp_specialized", "BLOCK_SIZE_K", 256, 512),
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
        ("warp_specialized", "BLOCK_SIZE_K", 256, ""),
        (
            *("warp_specialized", "BLOCK_SIZE_K", 32),
            "32 is not 64, 128 or 256: one, two or four times what a row of the ring has of 16-bit elements",
        ),
        ("warp_specialized", "BLOCK_SIZE_M", 2048, "2048 is not from 16 to 1024"),
    ],
)
def test_reasons(family: str, field: str, value: int, message: str) -> None:
    """The reason says what the value would have to be."""
    assert block_problem(family, field, value) == message


def test_names() -> None:
    """The table finds each family under its own name, and those with a width of any kind are the ones in Gluon."""
    assert all(name == family.name for name, family in FAMILIES.items())
    upright, swapped = "warp_specialized", "warp_specialized_swapped"
    clusters = {f"{swapped}_cluster{size}" for size in (2, 3, 4, 5, 8)}
    side_by_side = {f"{name}_{shape}" for name in (upright, swapped) for shape in ("2x1", "1x2")}
    assert set(RINGS) == {upright, swapped} | clusters | side_by_side
