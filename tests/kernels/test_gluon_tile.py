"""Tests of genkern.kernels.contract.gluon_tile: what buffers hold, the parts of C that are stored, and who does it."""

from __future__ import annotations

import pytest
from gluon_cases import LAYOUTS, block_scaled, fp16_problem, made, text_of
from gluon_stand_in import functions_of

from genkern.kernels.contract.gluon_tile import (
    STORED,
    buffer_bytes,
    columns_held,
    landing_bytes,
    parts_of,
    powers_of,
    scale_bytes,
    turned,
)

WIDTHS = range(8, 257, 8)


def columns_of(width: int, cluster: int) -> list[int]:
    """How many columns each program of a cluster stores."""
    return [sum(columns for by, _, columns in parts_of(width, cluster) if by == owner) for owner in range(cluster)]


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_parts_are_all_columns_once(cluster: int) -> None:
    """Parts lie side by side from the first column to the last, each a power of two wide; programs come in order."""
    for width in WIDTHS:
        parts = parts_of(width, cluster)
        widths = [columns for _, _, columns in parts]
        assert [first for _, first, _ in parts] == [sum(widths[:i]) for i in range(len(parts))]
        assert sum(widths) == width
        assert all(columns & (columns - 1) == 0 and columns >= 8 for columns in widths)
        assert [owner for owner, _, _ in parts] == sorted(owner for owner, _, _ in parts)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_shares_of_columns_differ_by_eight_at_most(cluster: int) -> None:
    """Every program of a cluster stores as many columns as another, or eight more."""
    for width in WIDTHS:
        counts = columns_of(width, cluster)
        assert max(counts) - min(counts) <= 8


def test_sums_of_other_programs_fit_where_they_land() -> None:
    """There is room for the largest share of columns, from every other program, in float32."""
    for width in WIDTHS:
        assert landing_bytes(64, width, 4) == 3 * 64 * max(columns_of(width, 4)) * 4


@pytest.mark.parametrize("most", STORED)
def test_parts_that_take_turns_are_no_larger(most: int) -> None:
    """As many of the largest as there is room for, then what is left in powers of two: all columns once."""
    for width in WIDTHS:
        widths = [columns for _, _, columns in parts_of(width, 1, most)]
        assert widths[: width // most] == [most] * (width // most)
        assert sum(widths) == width
        assert len(set(widths[width // most :])) == len(widths) - width // most
        assert max(widths) <= most


def test_generated_modules_cut_tiles_alike() -> None:
    """The module's parts_of, which kernels and launches ask, gives what the farm's signatures are made of."""
    theirs = functions_of(text_of(fp16_problem(64, 64, 64), made("warp_specialized", 64, 16, 1, 4, 3)))["parts_of"]
    for cluster, most in ((1, 256), (1, 64), (1, 32), (2, 256), (4, 256), (8, 256)):
        for width in WIDTHS:
            assert theirs(width, cluster, most) == parts_of(width, cluster, most)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("row_major_a", "row_major_b"), LAYOUTS)
def test_generated_modules_hold_operands_alike(row_major_a: bool, row_major_b: bool, swapped: bool) -> None:
    """What a buffer holds is what there is room for: whole boxes of 64 columns that do not run along K."""
    problem = fp16_problem(64, 64, 64, row_major_a=row_major_a, row_major_b=row_major_b)
    theirs = functions_of(text_of(problem, made("warp_specialized", 64, 64, 1, 4, 3)))
    is_turned = turned(problem, swapped)
    # Rows are A's, or B's columns; A runs along K where it is row-major, B where it is not.
    assert is_turned == ((row_major_b, not row_major_a) if swapped else (not row_major_a, row_major_b))
    assert tuple(theirs["turned"](swapped)) == is_turned
    for width in WIDTHS:
        held = -(-width // 64) * 64 if is_turned[1] else width
        assert theirs["columns_held"](width, swapped) == columns_held(width, is_turned[1]) == held
        assert (
            theirs["buffer_size"](128, width, swapped) == buffer_bytes(128, width, is_turned[1]) == (128 + held) * 128
        )


@pytest.mark.parametrize("block_n", [8, 128, 200])
@pytest.mark.parametrize("family", ["warp_specialized", "warp_specialized_swapped"])
def test_generated_modules_hold_scales_alike(family: str, block_n: int) -> None:
    """What lies beside a buffer is what there is room for, by 1024 bytes: scales of lines of rows, and of columns."""
    own = (("block_n", block_n),) if block_n != 128 else ()
    theirs = functions_of(text_of(block_scaled(64, 64, 128, own=own), made(family, 64, 64, 1, 4, 3, together=2)))
    swapped = "swapped" in family
    for rows in (64, 128, 256):
        for width in WIDTHS:
            count_a, count_b = (theirs[name](rows, width, swapped) for name in ("scale_count_a", "scale_count_b"))
            assert count_a == (width if swapped else rows + 4)
            size = theirs["scale_size"](rows, width, swapped)
            assert 4 * (count_a + count_b) <= size == scale_bytes(rows, width, swapped, block_n)


def test_powers_add_up() -> None:
    """A width is the sum of its powers, which are distinct powers of two, largest first, none below 8."""
    for width in WIDTHS:
        powers = powers_of(width)
        assert sum(powers) == width
        assert list(powers) == sorted(set(powers), reverse=True)
        assert all(power & (power - 1) == 0 and power >= 8 for power in powers)


def test_a_buffer_holds_a_block_of_k_of_both_sides() -> None:
    """64 elements of 2 bytes for each row and column, in whole blocks of the 8 rows that are swizzled together."""
    for width in WIDTHS:
        for rows in [64, 128, 256]:
            assert buffer_bytes(rows, width) == (rows + width) * 64 * 2
            assert buffer_bytes(rows, width) % 1024 == 0


@pytest.mark.parametrize(
    ("cluster", "expected"), [(1, 0), (2, 64 * 56 * 4), (4, 3 * 64 * 32 * 4), (8, 7 * 64 * 16 * 4)]
)
def test_sums_land_from_every_other_program(cluster: int, expected: int) -> None:
    """A float32 for each element of what one program stores: 104 columns by eights, in shares that differ by one."""
    assert landing_bytes(64, 104, cluster) == expected
