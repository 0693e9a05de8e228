"""CSV tables with a header line, as AITER keeps them; every row knows its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from genkern.errors import GenkernError
from genkern.formats.flat_yaml import shown


@dataclass(frozen=True)
class Row:
    """One row: `values` by column name, text without the spaces around it. `line` counts from 1."""

    line: int
    values: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """A header and its rows, in file order; blank lines are left out."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def read_table(text: str, where: str, error: type[GenkernError]) -> Table:
    """Parse `text`. Raises `error` (one line, with `where` and the line number) for a row that does not fit."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    columns: tuple[str, ...] = ()
    rows = []
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            line = reader.line_num
            if not columns:
                columns = tuple(cells)
                for name in columns:
                    if not name or columns.count(name) > 1:
                        raise error(
                            f"{where}, line {line}: column name {shown(name)} is empty or stands twice; "
                            "start the file with a header such as M,N,K"
                        )
            elif len(cells) != len(columns):
                raise error(
                    f"{where}, line {line}: {len(cells)} values for {len(columns)} columns; "
                    "write one value a column, separated by commas"
                )
            else:
                rows.append(Row(line, dict(zip(columns, cells, strict=True))))
    except csv.Error as exc:
        raise error(f"{where}, line {reader.line_num}: not CSV ({str(exc)[:100]}); check its quotes") from None
    if not columns:
        raise error(f"{where}: is empty; start it with a header such as M,N,K")
    return Table(columns, tuple(rows))
