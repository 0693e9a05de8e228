"""Describes a results file as text, for `genkern status` if the file has no journal."""

from __future__ import annotations

import time
from pathlib import Path

from genkern.cli.report import format_text
from genkern.errors import ResultsError
from genkern.file_io import read_text, shown_path
from genkern.files.file_kind import kind_of
from genkern.files.gemm_entry import GemmDefaults
from genkern.result.result import Result
from genkern.screen import fitted

HEAD = ["size", "format", "us", "source", "device", "Triton", "config"]
NUMBERS = ("us",)


def results_rows(path: str) -> list[list[str]]:
    """Return a row of times, sources, devices and configs for each size. Raises ResultsError if `path` is not a results
    file."""
    # An empty file counts as results without rows, as it does for a run.
    text = read_text(path, ResultsError)
    found = kind_of(path).read_rows(text, shown_path(path), GemmDefaults()) if text.strip() else ()
    return [_cells(row) for row in found]


def results_lines(path: str, journal: str = "; no journal is beside it", columns: int | None = None) -> list[str]:
    """Return the number of sizes and when the file was written, then the table of `results_rows` in at most `columns`.

    `journal` ends the first line. Raises ResultsError if `path` is not a results file.
    """
    rows = results_rows(path)
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(Path(path).stat().st_mtime))
    sizes = f"{len(rows)} size{'' if len(rows) == 1 else 's'}"
    return [
        f"{shown_path(path)}: results of {sizes}, written {written}{journal}",
        *(fitted([HEAD, *rows], NUMBERS, columns) if rows else []),
    ]


def _cells(row: Result) -> list[str]:
    units = f"{row.compute_units} compute units" if row.compute_units else ""
    device = ", ".join(part for part in (row.device or row.arch, units) if part)
    us = "" if row.duration_us is None else f"{row.duration_us:.2f}"
    # tune_gemm's rows have no source; genkern's CSV rows only have "measured" or "predicted".
    source = row.time_source or (row.library if row.config is None else "")
    return [
        row.problem.size,
        format_text(row.problem),
        us,
        source,
        device,
        row.version_of("triton") or "",
        row.config_name,
    ]
