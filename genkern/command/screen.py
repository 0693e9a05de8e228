"""The console of all commands, which escapes control characters of files, and tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console

from genkern.files import printable

_GAP = "  "


class Screen(Console):
    """A console that prints text literally: without markup, and with control sequences for terminals escaped."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_shown(each) if isinstance(each, str) else each for each in objects), **options)


def _shown(text: str) -> str:
    """Return the text with unprintable characters escaped, except for line ends."""
    return "\n".join(map(printable, text.split("\n")))


def aligned(rows: Sequence[Sequence[str]], right: Collection[str]) -> list[str]:
    """Return one line per row, the header first. Columns that are empty below the header are left out; columns named in
    `right` are right-aligned.

    Unprintable characters in cells are escaped, line ends too.
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
