"""A folder with the model of each fold, written by `genkern train --folds N --models FOLDER` for evaluation.

Each model has a file like any model, and a table lists the M, N and K that each model has not seen.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from genkern.errors import OutputError, ResultsError
from genkern.file_io import read_text, require_writable, shown_path, write_bytes_whole, write_whole
from genkern.search.guided.learned import Learned

Size = tuple[int, int, int]
_TABLE = "folds.csv"
_COLUMNS = ("model", "M", "N", "K")


class FoldsFolder:
    """A folder to which models are written. Models from earlier runs are replaced."""

    def __init__(self, path: str) -> None:
        """Raise OutputError if the folder cannot be written, or has files but no table of folds."""
        self._path, self._count = Path(path), 0
        self._rows: list[tuple[str, ...]] = [_COLUMNS]
        table = self._path / _TABLE
        if self._path.is_dir() and any(self._path.iterdir()) and not table.exists():
            raise OutputError(
                f"{shown_path(path)} exists and is not a folder of models of folds: give another --models"
            )
        require_writable(str(table))

    def add(self, model: Learned, unknown: Iterable[Size]) -> None:
        """Write a model and the sizes that it has not seen. Raises OutputError."""
        if not self._count:
            # If this run is killed later, no table is left that names another run's models.
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
    """Return for each M, N and K the model that has not seen it. Raises ResultsError if `path` is not such a folder."""
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
    return ResultsError(f"{shown_path(str(table))}: not a table of folds; genkern train --folds N --models writes one")
