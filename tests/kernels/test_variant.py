"""What templates must know of a kernel in Gluon: its boxes, and the parts that its tile of C is stored in."""

from __future__ import annotations

import pytest

from genkern.kernels.variant import Variant

WIDTHS = range(8, 257, 8)


def variant(width: int, cluster: int = 1) -> Variant:
    """A kernel whose tile has 64 rows and so many columns."""
    return Variant("kernel", "template", rows=64, width=width, warps=4, cluster=cluster)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_parts_are_all_columns_once(cluster: int) -> None:
    """Parts lie side by side from the first column to the last, each a power of two wide, numbered from 0."""
    for width in WIDTHS:
        parts = variant(width, cluster).parts
        assert [part.number for part in parts] == list(range(len(parts)))
        assert [part.offset for part in parts] == [sum(part.width for part in parts[:i]) for i in range(len(parts))]
        assert sum(part.width for part in parts) == width
        assert all(part.width & (part.width - 1) == 0 and part.width >= 8 for part in parts)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_shares_of_columns_differ_by_eight_at_most(cluster: int) -> None:
    """Every program of a cluster stores as many columns as another, or eight more; its parts are within its share."""
    for width in WIDTHS:
        kernel = variant(width, cluster)
        counts = [8 * len(columns) for columns in kernel.owned]
        assert len(counts) == cluster
        assert max(counts) - min(counts) <= 8
        assert [sum(part.width for part in kernel.parts if part.owner == i) for i in range(cluster)] == counts


def test_boxes_are_of_rows_and_then_of_columns() -> None:
    """112 columns come in three copies; with the rows' they fill a buffer of 128 bytes a line."""
    kernel = variant(112)
    assert kernel.boxes == ("rows_64", "columns_64", "columns_32", "columns_16")
    assert kernel.column_copies == (64, 32, 16)
    assert kernel.buffer_bytes == (64 + 112) * 128


def test_sums_of_other_programs_fit_where_they_land() -> None:
    """There is room for the largest share of columns, from every other program, in float32."""
    for width in WIDTHS:
        kernel = variant(width, 4)
        assert kernel.landing_bytes == 3 * 64 * 8 * max(len(columns) for columns in kernel.owned) * 4
    assert variant(256).landing_bytes == 0
