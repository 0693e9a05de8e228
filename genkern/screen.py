"""The console of all commands, which escapes control characters of files, and tables as text."""

from __future__ import annotations

import contextlib
import json
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console

from genkern.file_io import printable

_GAP = "  "
# Widest table, unless --wide is given.
COLUMNS = 100


class Screen(Console):
    """A console that prints text literally: without markup, and with control sequences for terminals escaped.

    is_json: prints one JSON object a line (--json). Text becomes {"event": "text", "text": ...}.
    is_wide: tables may be wider than COLUMNS (--wide).
    """

    def __init__(self, *, stderr: bool, is_json: bool = False, is_wide: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)
        self.is_json, self.is_wide = is_json, is_wide

    @property
    def is_terminal(self) -> bool:
        """False with --json: bars would be between the lines."""
        return not getattr(self, "is_json", False) and super().is_terminal

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_json:
            lines = [line for each in objects for line in str(each).split("\n") if line.strip()]
            for line in lines:
                self.put_record("text", {"text": line})
            return
        super().print(*(_shown(each) if isinstance(each, str) else each for each in objects), **options)

    def put_next(self, line: str) -> None:
        """Print the last line of a command: what to do next."""
        if self.is_json:
            self.put_record("next", {"do": line})
        else:
            self.print(f"next: {line}")

    def put_record(self, event: str, values: Mapping[str, object]) -> None:
        """Print one JSON line. Numbers that JSON lacks become null."""
        line = json.dumps({"event": event, **_plain(dict(values))}, ensure_ascii=True, allow_nan=False)
        super().print(line)


def put(console: Console, event: str, values: Mapping[str, object], text: Sequence[str]) -> None:
    """Print a record: with --json one JSON line, else the lines of `text`."""
    if isinstance(console, Screen) and console.is_json:
        console.put_record(event, values)
        return
    for line in text:
        console.print(line)


def is_json(console: Console) -> bool:
    """Return True if the console prints JSON lines."""
    return isinstance(console, Screen) and console.is_json


def columns_of(console: Console) -> int | None:
    """Return the number of columns that a table may have; None if there is no limit (--wide)."""
    if isinstance(console, Screen) and console.is_wide:
        return None
    return min(COLUMNS, console.width) if console.is_terminal else COLUMNS


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: text for other types, null for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def _shown(text: str) -> str:
    """Return the text with unprintable characters escaped, except for line ends."""
    return "\n".join(map(printable, text.split("\n")))


def put_table(console: Console, event: str, rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print a table whose first row is the header: with --json one record a row, else lines as `fitted` returns them.

    A record leaves out empty cells; cells of columns in `right` become numbers.
    """
    head, *body = rows
    if isinstance(console, Screen) and console.is_json:
        for row in body:
            cells = {name: cell for name, cell in zip(head, row, strict=True) if cell}
            numbers = {name: _number(cell) if name in right else cell for name, cell in cells.items()}
            console.put_record(event, {name.replace(" ", "_"): value for name, value in numbers.items()})
        return
    # One call of print, since each costs 0.1 ms and a table may have 100,000 rows.
    console.print("\n".join(fitted(rows, right, columns_of(console))))


def _number(cell: str) -> float | str:
    with contextlib.suppress(ValueError):
        return float(cell.replace(",", ""))
    return cell


def fitted(rows: Sequence[Sequence[str]], right: Collection[str], columns: int | None) -> list[str]:
    """Return the lines of `aligned`, none longer than `columns` (None: no limit) as far as possible.

    If a line would be longer, the last columns are taken out, as many as necessary, and their cells follow on a line of
    their own, indented by two. Tables keep at least their first column.
    """
    lines = aligned(rows, right)
    if columns is None or max(map(len, lines), default=0) <= columns:
        return lines
    apart = 1
    while apart < len(rows[0]) - 1 and max(map(len, aligned([row[:-apart] for row in rows], right))) > columns:
        apart += 1
    whole = aligned([row[:-apart] for row in rows], right)
    lines = []
    for line, row in zip(whole, rows, strict=True):
        lines.append(line)
        others = _GAP.join(filter(None, map(printable, row[-apart:])))
        lines += textwrap.wrap(others, columns, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return lines


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
