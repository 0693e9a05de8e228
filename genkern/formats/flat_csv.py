"""CSV tables with a header line, as AITER keeps them; every row knows its lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from genkern.errors import GenkernError
from genkern.formats.flat_yaml import shown

# AITER's widest table has 41; far more is no table of GEMMs.
MAX_COLUMNS = 200
# Lines of misfits that a note names.
_LINES_NAMED = 5


@dataclass(frozen=True)
class Row:
    """One row: `values` by column name, text without the spaces around it.

    `line` is its last line and `first_line` its first, which differ where a quoted cell has several; from 1.
    """

    line: int
    values: Mapping[str, str]
    first_line: int


@dataclass(frozen=True)
class Table:
    """A header and its rows, in file order; blank lines are left out.

    `misfits` are the line numbers of rows that have another number of values than the header has columns.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    misfits: tuple[int, ...] = ()

    @property
    def misfits_text(self) -> str:
        """What is wrong with the misfits and where they are, for a note that counts them."""
        lines = ", ".join(map(str, self.misfits[:_LINES_NAMED]))
        more = len(self.misfits) - _LINES_NAMED
        where = f"line{'s' if len(self.misfits) > 1 else ''} {lines}" + (f" and {more} more" if more > 0 else "")
        return f"rows without one value a column ({where}; there are {len(self.columns)} columns)"


def read_table(text: str, where: str, error: type[GenkernError], *, results: str = "") -> Table:
    """Parses `text`.

    Raises `error` (one line, with `where` and the line number) for a row without one value a column, unless the header
    has the column `results`: tables that tuners wrote have such rows, which are then left out as `misfits`.
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
                    "write one value a column, separated by commas"
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
            raise error(f"{where}: column name {shown(name)} is empty or stands twice; {advice}")
        seen.add(name)
