"""Tests of genkern.kernels.families.gluon_tile: the parts that a tile of C is stored in, and who stores them."""

from __future__ import annotations

import pytest
from gluon_cases import fp16_problem, made, text_of
from gluon_stand_in import functions_of

from genkern.kernels.families.gluon_tile import landing_bytes, parts_of

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


def test_generated_modules_cut_tiles_alike() -> None:
    """The module's parts_of, which kernels and launches ask, gives what the farm's signatures are made of."""
    theirs = functions_of(text_of(fp16_problem(64, 64, 64), made("warp_specialized", 64, 16, 1, 4, 3)))["parts_of"]
    for cluster in (1, 2, 4, 8):
        for width in WIDTHS:
            assert theirs(width, cluster) == parts_of(width, cluster)
