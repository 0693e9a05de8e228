"""Rows of cells as lines of text, in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from genkern.files import printable

_GAP = "  "


def aligned(rows: Sequence[Sequence[str]], right: Collection[str]) -> list[str]:
    """One line a row, the header first; columns that say nothing are left out, those named in `right` end alike.

    What is not printable in a cell is escaped, ends of lines too.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return [
        _GAP.join(
            cell.rjust(width) if column[0] in right else cell.ljust(width)
            for cell, column, width in zip(row, columns, widths, strict=True)
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]
