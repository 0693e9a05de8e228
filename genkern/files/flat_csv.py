"""Reads CSV tables with a header line, as AITER writes them; every row knows its line numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from genkern.decoding import shown
from genkern.errors import GenkernError

# AITER's widest table has 41 columns; a table with far more is not one of GEMMs.
MAX_COLUMNS = 200
# The number of lines that a note names.
_LINES_NAMED = 5


@dataclass(frozen=True)
class Row:
    """One row of a table.

    line: number of its last line, from 1
    values: text by column name, without surrounding spaces
    first_line: number of its first line, which differs if a quoted cell has several lines
    """

    line: int
    values: Mapping[str, str]
    first_line: int


@dataclass(frozen=True)
class Table:
    """A header and its rows, in file order, without blank lines.

    `misfits`: line numbers of rows whose number of values differs from the number of columns.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    misfits: tuple[int, ...] = ()

    @property
    def misfits_text(self) -> str:
        """A note's text: what is wrong with the misfits, and where they are."""
        lines = ", ".join(map(str, self.misfits[:_LINES_NAMED]))
        more = len(self.misfits) - _LINES_NAMED
        where = f"line{'s' if len(self.misfits) > 1 else ''} {lines}" + (f" and {more} more" if more > 0 else "")
        return f"rows without one value per column ({where}; there are {len(self.columns)} columns)"


def read_table(text: str, where: str, error: type[GenkernError], *, results: str = "") -> Table:
    """Parse `text` as a table.

    Raises `error` (one line, with `where` and the line number) for a row without one value per column, unless the
    header has the column `results`: tables that tuners wrote have such rows, which are left out as `misfits`.
    """
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    columns: tuple[str, ...] = ()
    rows, misfits = [], []
    ended = 0
    try:
        for cells in reader:
            first, ended = ended + 1, reader.line_num
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            line = reader.line_num
            if not columns:
                columns = tuple(cells)
                _check_header(columns, f"{where}, line {line}", error)
            elif len(cells) != len(columns) and results in columns:
                misfits.append(line)
            elif len(cells) != len(columns):
                raise error(
                    f"{where}, line {line}: {len(cells)} values for {len(columns)} columns; "
                    "write one value per column, separated by commas"
                )
            else:
                rows.append(Row(line, dict(zip(columns, cells, strict=True)), first))
    except csv.Error as exc:
        raise error(f"{where}, line {reader.line_num}: not CSV ({str(exc)[:100]}); check its quotes") from None
    if not columns:
        raise error(f"{where}: is empty; start it with a header such as M,N,K")
    return Table(columns, tuple(rows), tuple(misfits))


def _check_header(columns: tuple[str, ...], where: str, error: type[GenkernError]) -> None:
    advice = "start the file with a header such as M,N,K"
    if len(columns) > MAX_COLUMNS:
        raise error(f"{where}: a header of {len(columns)} columns, more than {MAX_COLUMNS}; {advice}")
    seen: set[str] = set()
    for name in columns:
        if not name or name in seen:
            raise error(f"{where}: column name {shown(name)} is empty or repeated; {advice}")
        seen.add(name)
