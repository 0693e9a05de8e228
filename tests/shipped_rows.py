"""The shipped results as rows, for tests that look at all of them: a file is read once in a process, when one asks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from genkern.files.file_kind import read_results
from genkern.result.result import Result

RESULTS = Path(__file__).resolve().parents[1] / "results"


@cache
def rows_in(file: Path) -> tuple[Result, ...]:
    """The rows of one file of results."""
    return tuple(read_results(str(file)))


def shipped_rows(device: str = "*") -> list[Result]:
    """Those of all files, or of one device's, in the order of their names; of older kernels too."""
    return [row for file in sorted(RESULTS.glob(f"{device}/**/*.yaml")) for row in rows_in(file)]
