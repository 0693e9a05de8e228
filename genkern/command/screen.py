"""What a person reads: the console of all commands, whatever stands in the files that they read, and tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console

from genkern.files import printable

_GAP = "  "


class Screen(Console):
    """Text as it is: nothing in it is markup, and what would move a cursor or rename a window is shown escaped."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_shown(each) if isinstance(each, str) else each for each in objects), **options)


def _shown(text: str) -> str:
    """Lines stay lines: those of a table, or of --explain."""
    return "\n".join(map(printable, text.split("\n")))


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
