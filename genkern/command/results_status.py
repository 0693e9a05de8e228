"""What a results file says of itself, as text: for `genkern status` where no journal is beside it."""

from __future__ import annotations

import time
from pathlib import Path

from genkern.command.report import format_text
from genkern.command.text_table import aligned
from genkern.errors import ResultsError
from genkern.files import read_text, shown_path
from genkern.formats import aiter_csv, tune_gemm_yaml
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import PREDICTED


def results_lines(path: str, journal: str = "; no journal is beside it") -> list[str]:
    """How many sizes the file holds and when it was written, then each with its time, source, device and config.

    `journal` ends the first line.

    Raises ResultsError when it is no results file.
    """
    read = _csv_rows if path.lower().endswith(".csv") else _yaml_rows
    # As a run takes it: one that has no rows yet.
    rows = read(path) if read_text(path, ResultsError).strip() else []
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(Path(path).stat().st_mtime))
    sizes = f"{len(rows)} size{'' if len(rows) == 1 else 's'}"
    head = ["size", "format", "us", "source", "device", "Triton", "config"]
    return [
        f"{shown_path(path)}: results of {sizes}, written {written}{journal}",
        *(aligned([head, *rows], ["us"]) if rows else []),
    ]


def _yaml_rows(path: str) -> list[list[str]]:
    rows = []
    for row in tune_gemm_yaml.read_winners(path):
        device, triton = row.device or row.arch or "", row.versions.get("triton", "")
        rows.append(_row(row.problem, row.duration_us, row.time_source or "", device, triton, row.config))
    return rows


def _csv_rows(path: str) -> list[list[str]]:
    rows = []
    for row in aiter_csv.read_rows(path):
        units = f"{row.cu_num} compute units" if row.cu_num else ""
        device = ", ".join(part for part in (row.gfx, units) if part)
        source = PREDICTED if row.predicted else row.libtype
        rows.append(_row(row.problem, row.duration_us, source, device, "", row.config or row.kernel_name))
    return rows


def _row(
    problem: GemmProblem, us: float | None, source: str, device: str, triton: str, config: Config | str
) -> list[str]:
    name = config.name if isinstance(config, Config) else config
    return [problem.size, format_text(problem), "" if us is None else f"{us:.2f}", source, device, triton, name]
