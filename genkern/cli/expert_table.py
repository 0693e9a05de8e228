"""-o FILE.csv of a run on fused MoE: writes AITER's table, which has one row for both stages of experts."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from genkern.cli.setting import Setting
from genkern.errors import InputError, ResultsError
from genkern.file_io import read_text, require_writable, shown_path, write_whole
from genkern.files import aiter_fmoe
from genkern.files.file_kind import read_results
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.result.device import DeviceKey

_PLACEHOLDER = Config("tiled", 16, 16, 16)


def table_of(options: argparse.Namespace, problems: Collection[GemmProblem], key: DeviceKey) -> str | None:
    """Return the path of the table that -o names, or None if -o is a results file.

    A row of the table needs the winners of both stages, so it is written at the end of the run. Until then results go
    to a file whose name is -o with .yaml appended; this function stores that name in `options`. Raises InputError or
    OutputError, before any work is done, if the table cannot take these rows.
    """
    path = options.tuning_results_file
    if path is None or not path.lower().endswith(".csv") or {problem.op for problem in problems} != {aiter_fmoe.OP}:
        return None
    for problem in problems:
        if reason := aiter_fmoe.obstacle(problem):
            raise InputError(f"{shown_path(path)} cannot hold {problem.size}: {reason}; give an -o that ends in .yaml")
    require_writable(path)
    sizes = [TimedSize(problem, {_PLACEHOLDER: 1.0}, key.arch) for problem in problems]
    aiter_fmoe.table_with(_text(path), shown_path(path), sizes, compute_units=key.compute_units)
    options.tuning_results_file = f"{path}.yaml"
    return str(path)


def write_table(path: str, problems: Collection[GemmProblem], setting: Setting, console: Console) -> None:
    """Write the results of these problems into the table. Raises InputError or OutputError."""
    key = setting.target.key
    try:
        rows = read_results(setting.results_path)
    except ResultsError:
        return  # the run has no winner
    wanted = frozenset(problems)
    sizes = {
        row.problem: TimedSize(row.problem, {row.config: row.duration_us}, key.arch, row.device or "")
        for row in rows
        if row.problem in wanted and row.is_of(key) and row.config and row.duration_us
    }
    whole: set[GemmProblem] = set()
    for problem in sizes:
        if (down := aiter_fmoe.other_stage(problem)) in sizes:
            whole |= {problem, down}
    if missing := len(wanted - whole):
        console.print(f"left out of {shown_path(path)}: {missing} sizes whose experts have no winner for both stages")
    found = [size for problem, size in sizes.items() if problem in whole]
    text = aiter_fmoe.table_with(
        _text(path),
        shown_path(path),
        found,
        predicted=not setting.target.measured,
        compute_units=key.compute_units,
    )
    write_whole(path, text)
    if note := aiter_fmoe.never_read(size.problem.M for size in found):
        console.print(f"note: {note}")
    console.print(f"AITER's table: {shown_path(path)}")


def _text(path: str) -> str:
    return read_text(path) if Path(path).exists() else ""
