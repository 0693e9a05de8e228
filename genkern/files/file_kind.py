"""The file kinds of size lists and results, chosen by the suffix of the file's name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from genkern.errors import OutputError, ResultsError
from genkern.file_io import is_stream, read_text, require_absent, shown_path
from genkern.files import aiter_csv, tune_gemm_yaml
from genkern.files.gemm_entry import GemmDefaults, SizeItem
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result


class FileKind(Protocol):
    """The functions that a module of this package provides for one kind; `where` is the file's name in messages."""

    ONE_ROW_A_KEY: bool
    """Whether a file may have only one row per problem and device, since other readers require that."""

    EMPTY: str
    """What follows the head in a file without rows."""

    def size_items(self, text: str, where: str) -> Iterator[SizeItem]:
        """Yield the sizes of a size list or a results file. Raises InputError."""

    def read_rows(self, text: str, where: str, defaults: GemmDefaults) -> Iterator[Result]:
        """Yield the rows of a results file in order. Raises ResultsError when it reaches an invalid row."""

    def split(self, text: str, where: str, lines: Sequence[int]) -> tuple[str, list[str]]:
        """Return the head of a results file, and the text of each row; rows begin at these lines (Result.line).

        Raises ResultsError.
        """

    def render(self, winners: Sequence[Result], compute_units: int, head: str) -> tuple[str, list[str]]:
        """Return the head (`head` unless it is ""), and the text of a row for each winner."""

    def obstacle(self, problem: GemmProblem) -> str:
        """Return why no file of this kind can hold results of the problem; "" if one can."""

    def no_room(self, ops: Sequence[str], head: str) -> str:
        """Return why a file with this head cannot take results of all these ops; "" if it can."""


_BY_SUFFIX: dict[str, FileKind] = {".csv": aiter_csv}
_OTHERS: FileKind = tune_gemm_yaml


def kind_of(path: str) -> FileKind:
    """Return AITER's CSV for a name that ends in .csv, otherwise tune_gemm's YAML."""
    return next((kind for suffix, kind in _BY_SUFFIX.items() if path.lower().endswith(suffix)), _OTHERS)


LIST_HELP = "the list to write: YAML, or AITER's untuned CSV of one format for a name in .csv"


def list_text(problems: Sequence[GemmProblem], path: str) -> str:
    """Return the size list of these problems, for a file of this name. Raises InputError if AITER's columns cannot
    express them."""
    if kind_of(path) is aiter_csv:
        return aiter_csv.untuned_text(problems, shown_path(path))
    return "".join(map(tune_gemm_yaml.size_line, problems))


def read_results(path: str, defaults: GemmDefaults | None = None) -> list[Result]:
    """Return the rows of a results file, in order. Raises ResultsError (one line: file, line, what)."""
    text = read_text(path, ResultsError)
    return list(kind_of(path).read_rows(text, shown_path(path), defaults or GemmDefaults()))


def require_list_or_none(path: str, overwrite: bool) -> None:
    """Raise OutputError if a size list must not replace an existing file.

    Without `overwrite` it replaces no file; with it, any file but results.
    """
    require_absent(path, overwrite)
    if any(row.config is not None or row.duration_us is not None for row in _rows_there(path)):
        raise OutputError(f"{shown_path(path)} holds results, which a list of sizes does not replace; name another -o")


def require_no_times(path: str, overwrite: bool) -> None:
    """Raise OutputError if results without times must not replace an existing file.

    Without `overwrite` they replace no file; with it, any file but results with times.
    """
    require_absent(path, overwrite)
    if any(row.duration_us is not None for row in _rows_there(path)):
        raise OutputError(f"{shown_path(path)} holds times, which configs without do not replace; name another -o")


def _rows_there(path: str) -> list[Result]:
    """Return the rows of a results file; none if there is no file, or it is not a results file."""
    if not is_stream(path) and os.path.isfile(path):
        with contextlib.suppress(ResultsError):
            return read_results(path)
    return []
