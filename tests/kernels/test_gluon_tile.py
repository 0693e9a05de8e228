"""Tests of genkern.kernels.families.gluon_tile: the parts that a tile of C is stored in, and who stores them."""

from __future__ import annotations

import pytest
from gluon_cases import fp16_problem, made, text_of
from gluon_stand_in import functions_of

from genkern.kernels.families.gluon_tile import landing_bytes, owned_eights, parts_of

WIDTHS = range(8, 257, 8)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_parts_are_all_columns_once(cluster: int) -> None:
    """Parts lie side by side from the first column to the last, each a power of two wide."""
    for width in WIDTHS:
        parts = parts_of(width, cluster)
        assert [part.offset for part in parts] == [sum(part.width for part in parts[:i]) for i in range(len(parts))]
        assert sum(part.width for part in parts) == width
        assert all(part.width & (part.width - 1) == 0 and part.width >= 8 for part in parts)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_shares_of_columns_differ_by_eight_at_most(cluster: int) -> None:
    """Every program of a cluster stores as many columns as another, or eight more; its parts are within its share."""
    for width in WIDTHS:
        counts = [8 * len(columns) for columns in owned_eights(width, cluster)]
        assert len(counts) == cluster
        assert max(counts) - min(counts) <= 8
        assert [
            sum(part.width for part in parts_of(width, cluster) if part.owner == i) for i in range(cluster)
        ] == counts


def test_sums_of_other_programs_fit_where_they_land() -> None:
    """There is room for the largest share of columns, from every other program, in float32."""
    for width in WIDTHS:
        assert landing_bytes(64, width, 4) == 3 * 64 * 8 * max(map(len, owned_eights(width, 4))) * 4


def test_generated_modules_cut_tiles_alike() -> None:
    """The module's parts_of, which kernels and launches ask, gives what the farm's signatures are made of."""
    theirs = functions_of(text_of(fp16_problem(64, 64, 64), made("warp_specialized", 64, 16, 1, 4, 3)))["parts_of"]
    for cluster in (1, 2, 4, 8):
        for width in WIDTHS:
            expected = tuple((part.owner, part.offset, part.width) for part in parts_of(width, cluster))
            assert theirs(width, cluster) == expected
