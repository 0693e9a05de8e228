"""`write`: a report in one of the formats."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from genkern.errors import InputError
from genkern.file_io import shown_path, write_bytes_whole, write_whole
from genkern.results_report.candidates import MOST_CANDIDATES
from genkern.results_report.collecting import Results, collect
from genkern.results_report.markdown import markdown
from genkern.results_report.page import page
from genkern.results_report.pictures import png, svg
from genkern.results_report.record import Record, plain

FORMATS = ("html", "md", "png", "svg", "json")
# The formats that show generated programs.
_WITH_SOURCES = ("html", "json")


def format_of(path: str, format: str | None) -> str:
    """Return the format of a report: `format`, or what the suffix of `path` says.

    Raises InputError if neither names one of FORMATS.
    """
    found = format or Path(path).suffix.lower().lstrip(".")
    if found not in FORMATS:
        said = f"format {format!r}" if format else f"the suffix of {shown_path(path)}"
        raise InputError(f"{said} is not a format of reports: use one of {', '.join(FORMATS)}")
    return found


def write(
    results: Results,
    path: str | os.PathLike[str],
    old: Results | None = None,
    format: str | None = None,
    *,
    candidates: Sequence[str] = (),
    title: str = "",
    most_candidates: int = MOST_CANDIDATES,
) -> Record:
    """Write a report of results, and return its record.

    Args:
        results: a results file, a folder of results files, or rows that `genkern.files` has read
            (`genkern.files.file_kind.read_results`).
        path: the file to write. It is replaced as a whole.
        old: older results to compare with, in the same forms.
        format: one of FORMATS; by default the suffix of `path`.
        candidates, title, most_candidates: see `collect`.

    Raises:
        ResultsError: a file cannot be read, or has no result.
        InputError: the format is unknown, or its extra package is not installed.
        OutputError: the file cannot be written.

    Example:
        >>> from genkern.results_report import write
        >>> write("results.yaml", "report.html", old="results_of_last_week.yaml")
    """
    where = os.fspath(path)
    kind = format_of(where, format)
    record = collect(
        results,
        old,
        candidates=candidates,
        title=title,
        most_candidates=most_candidates,
        sources=kind in _WITH_SOURCES,
    )
    write_record(record, where, kind)
    return record


def write_record(record: Record, path: str, format: str) -> None:
    """Write a report from its record. Raises InputError or OutputError as `write` does."""
    if format == "png":
        write_bytes_whole(path, png(record))
        return
    texts = {"html": page, "md": markdown, "svg": svg, "json": _json}
    write_whole(path, texts[format](record))


def _json(record: Record) -> str:
    return json.dumps(plain(record), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
