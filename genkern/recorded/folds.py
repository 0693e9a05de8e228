"""Models of folds in a folder: `genkern train --folds N --models FOLDER` writes them, for others to judge by.

A file for each, as of any model, and a table with the M, N and K that each does not know.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from genkern.errors import OutputError, ResultsError
from genkern.files import read_text, require_writable, shown_path, write_bytes_whole, write_whole
from genkern.search.guided.learned import Learned

Size = tuple[int, int, int]
_TABLE = "folds.csv"
_COLUMNS = ("model", "M", "N", "K")


class FoldsFolder:
    """A folder that is written to, from its start: models of before are replaced."""

    def __init__(self, path: str) -> None:
        """Raises OutputError where nothing can be written, or where files of somebody else are."""
        self._path, self._count = Path(path), 0
        self._rows: list[tuple[str, ...]] = [_COLUMNS]
        table = self._path / _TABLE
        if self._path.is_dir() and any(self._path.iterdir()) and not table.exists():
            raise OutputError(f"{shown_path(path)} is there and holds no models of folds: give another --models")
        require_writable(str(table))

    def add(self, model: Learned, unknown: Iterable[Size]) -> None:
        """A model, and the sizes that it does not know. Raises OutputError."""
        if not self._count:
            # What is killed behind this leaves no table that names another run's models.
            (self._path / _TABLE).unlink(missing_ok=True)
        self._count += 1
        name, data = f"{self._count}.npz", io.BytesIO()
        model.write(data)
        write_bytes_whole(str(self._path / name), data.getvalue())
        self._rows += [(name, *map(str, size)) for size in sorted({*unknown})]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._rows)
        write_whole(str(self._path / _TABLE), text.getvalue())


def read_folds(path: str) -> Mapping[Size, Learned]:
    """By M, N and K the model that does not know them. Raises ResultsError for what is no such folder."""
    table = Path(path) / _TABLE
    try:
        head, *rows = csv.reader(read_text(str(table), ResultsError).splitlines() or [""])
        named = [(table.with_name(name), (int(m), int(n), int(k))) for name, m, n, k in rows]
    except (csv.Error, ValueError):
        raise _no_table(table) from None
    if tuple(head) != _COLUMNS or not named:
        raise _no_table(table)
    models = {file: Learned.read(file) for file in dict.fromkeys(file for file, _ in named)}
    return {size: models[file] for file, size in named}


def _no_table(table: Path) -> ResultsError:
    return ResultsError(f"{shown_path(str(table))}: no table of folds; genkern train --folds N --models makes one")
