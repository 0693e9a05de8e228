"""Reads the times of all configs of tuned sizes from the files of --profile_file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping

from genkern.cli.candidates_file import COLUMNS
from genkern.errors import InputError, ResultsError
from genkern.file_io import read_text, shown_path
from genkern.files.config_entry import parse_config
from genkern.files.gemm_entry import problem_of_cells
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import PREDICTED, Outcome

# Twenty thousand configs of one size take 4 MB.
_MOST_BYTES = 2**30
_TIMED = (Outcome.MEASURED.value, PREDICTED)


def read_times(paths: Iterable[str], predicted: bool) -> dict[GemmProblem, dict[Config, float]]:
    """Return the times in microseconds of the configs that were measured, by problem; later times replace earlier ones.

    Predicted times are included only if `predicted` is True; calls of libraries are not. Raises ResultsError for a file
    that this version's --profile_file did not write, or with an invalid row.
    """
    found: dict[GemmProblem, dict[Config, float]] = {}
    for path in paths:
        text, where = read_text(path, ResultsError, _MOST_BYTES), shown_path(path)
        rows = csv.reader(io.StringIO(text, newline=""))
        try:
            if next(rows, None) != list(COLUMNS):
                raise ResultsError(f"{where} is not a list of candidates as this version's --profile_file writes it")
            for row in rows:
                if len(row) == len(COLUMNS):
                    _add(found, dict(zip(COLUMNS, row, strict=True)), predicted)
        except InputError as error:
            raise ResultsError(f"{where}, line {rows.line_num}: {error}") from None
        except csv.Error as error:
            raise ResultsError(f"{where}, line {rows.line_num}: not CSV ({str(error)[:100]})") from None
    return found


def _add(found: dict[GemmProblem, dict[Config, float]], cells: Mapping[str, str], predicted: bool) -> None:
    if cells["outcome"] not in (_TIMED if predicted else _TIMED[:1]) or not cells["us"]:
        return
    try:
        us = float(cells["us"])
    except ValueError:
        us = math.nan
    if not (math.isfinite(us) and us > 0):
        raise InputError(f"us = {cells['us'][:40]!r} is not a time")
    if not cells["config"].isidentifier() or "_BM" not in cells["config"]:
        return  # a call of a library
    found.setdefault(problem_of_cells(cells), {})[parse_config(cells["config"])] = us
