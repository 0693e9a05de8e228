"""AITER's tuned CSV: written for its tuned tables (libtype genkern), and read back.

Source: ROCm/aiter, aiter/configs/bf16_tuned_gemm.csv and a8w8_bpreshuffle_tuned_gemm.csv (2026-08). Files from
before 2026-04 have no `gfx` column. `bw` is in GB/s with each operand counted once. Behind AITER's columns stand
genkern's own (EXTRA_COLUMNS), which AITER passes over: aiter/tuned_gemm.py reads with pandas, by the names of columns.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from genkern.errors import InputError, ResultsError
from genkern.files import read_text, shown_path, write_whole
from genkern.formats.aiter_columns import (
    EXTRA_COLUMNS,
    TUNED_A8W8_COLUMNS,
    TUNED_A16W16_COLUMNS,
    check_columns,
    entry_values,
    flag,
    number,
)
from genkern.formats.flat_csv import read_table
from genkern.formats.flat_yaml import shown
from genkern.formats.gemm_entry import GemmDefaults, resolve
from genkern.formats.tuned_row import choice_of, interval, parse_config, positive
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import PREDICTED, Winner
from genkern.ops.op import gb_per_s

LIBTYPE = "genkern"
# No column says where a time comes from; AITER passes over rows of a library that it does not know.
LIBTYPE_PREDICTED = "genkern_predicted"
_TIMES = ("interval_low_us", "interval_high_us", "runner_up_us", "margin", "vendor_us")
_COLUMNS = {"a16w16": TUNED_A16W16_COLUMNS, "a8w8": TUNED_A8W8_COLUMNS}


@dataclass(frozen=True)
class AiterRow:
    """One row of a tuned CSV. `config` is None when another library's kernel won (`libtype`).

    `duration_us` is None for the rows without a time: AITER ships rows with us = 0, and marks
    candidates that failed with -1 and inf. What follows `bpreshuffle` is of genkern's own columns, as in `Winner`, and
    None, empty or its default where the file or the row has none of them.
    """

    problem: GemmProblem
    gfx: str | None
    cu_num: int | None
    libtype: str
    kernel_name: str
    duration_us: float | None
    error_ratio: float | None
    config: Config | None
    bpreshuffle: bool = False
    interval_us: tuple[float, float] | None = None
    samples: int | None = None
    discarded: int | None = None
    runner_up: str = ""
    runner_up_us: float | None = None
    margin: float | None = None
    vendor_us: float | None = None
    choice: str = "config"

    @property
    def predicted(self) -> bool | None:
        """Whether the time is a prediction of genkern's; None for the rows of other libraries."""
        return self.libtype == LIBTYPE_PREDICTED if self.config is not None else None


@dataclass(frozen=True)
class Written:
    """The files that were written, and one line for every group of winners that no column can hold."""

    paths: tuple[str, ...]
    notes: tuple[str, ...]


def write_winners(path: str, winners: Sequence[Winner], cu_num: int, with_gfx: bool = True) -> Written:
    """Write `winners` as AITER's tuned rows for a device with `cu_num` compute units.

    `with_gfx=False` leaves out the gfx column, for an AITER from before 2026-04. a16w16 and a8w8 have
    different columns; when both are there, a8w8 goes to `<path>_a8w8.csv`. AITER has no place for other
    layouts than row-major A with [N, K] weights, for an activation, nor for a8w8 with a bias, an output
    other than bf16 or two input types: such winners are left out and named in `notes`. Raises OutputError
    when a file cannot be written.
    """
    kept: dict[str, list[Winner]] = {}
    left_out: dict[str, list[str]] = {}
    for winner in winners:
        if reason := obstacle(winner.problem):
            left_out.setdefault(reason, []).append(winner.problem.size)
        else:
            kept.setdefault(winner.problem.op, []).append(winner)
    if not kept:
        kept["a16w16"] = []
    paths: list[str] = []
    for op in sorted(kept, key=list(_COLUMNS).index):
        stem, suffix = os.path.splitext(path)
        paths.append(f"{stem}_{op}{suffix}" if paths else path)
        table = frame(kept[op], op, cu_num)
        write_whole(paths[-1], (table if with_gfx else table.drop(columns="gfx")).to_csv(index=False))
    notes = (
        f"left out of {shown_path(path)}: {', '.join(sizes[:5])} ({len(sizes)} in all): {reason}"
        for reason, sizes in left_out.items()
    )
    return Written(tuple(paths), tuple(notes))


def frame(winners: Sequence[Winner], op: str, cu_num: int) -> pd.DataFrame:
    """`winners` of one op as a table with AITER's columns, in their order, and EXTRA_COLUMNS behind them."""
    rows = [_cells(winner, cu_num) for winner in winners]
    columns = (*_COLUMNS[op], *EXTRA_COLUMNS)
    table: pd.DataFrame = pd.DataFrame({column: [row[column] for row in rows] for column in columns})
    return table


def widened(lines: Sequence[str]) -> list[str]:
    """The lines of a tuned CSV of AITER's columns alone, with empty EXTRA_COLUMNS; those of another as they are.

    `lines` are the header and the rows, each of one line, without their ends.
    """
    if not lines or lines[0] not in (",".join(columns) for columns in _COLUMNS.values()):
        return list(lines)
    return [f"{lines[0]},{','.join(EXTRA_COLUMNS)}", *(line + "," * len(EXTRA_COLUMNS) for line in lines[1:])]


def read_rows(path: str, defaults: GemmDefaults | None = None) -> list[AiterRow]:
    """Read a tuned CSV of AITER or genkern, with or without `gfx`, in file order.

    Types that its columns do not say come from `defaults`. Raises ResultsError (one line: file, line,
    what) for anything else, such as an untuned file or one of another operator.
    """
    where = shown_path(path)
    table = read_table(read_text(path, ResultsError), where, ResultsError)
    try:
        check_columns(table.columns)
    except InputError as exc:
        raise ResultsError(f"{where}: {exc}") from None
    if missing := {"us", "kernelName"} - set(table.columns):
        raise ResultsError(f"{where}: column {min(missing)} is missing; this is a list of sizes, not of results")
    rows = []
    for row in table.rows:
        try:
            rows.append(_row(row.values, defaults or GemmDefaults()))
        except InputError as exc:
            raise ResultsError(f"{where}, line {row.line}: {exc}") from None
    return rows


def obstacle(problem: GemmProblem) -> str | None:
    """Why AITER's tables cannot hold results of this problem; None when they can."""
    if not problem.row_major_a or problem.row_major_b:
        return "AITER's rows mean row-major A and [N, K] weights only"
    if problem.op not in _COLUMNS:
        return f"AITER has no table for {problem.op}"
    if problem.activation != "none":
        return f"AITER's rows have no column for an activation ({problem.activation})"
    if problem.op == "a8w8" and (problem.bias or problem.dtype_c != "bf16" or problem.dtype_a != problem.dtype_b):
        return "AITER's a8w8 rows have no bias, bf16 output and one input type"
    return None


def _cells(winner: Winner, cu_num: int) -> dict[str, object]:
    problem, check = winner.problem, winner.check
    error_ratio = None if check is None else round(check.error_ratio, 6)
    low_us, high_us = winner.interval_us or (None, None)
    return {
        "gfx": winner.arch,
        "cu_num": cu_num,
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "bias": problem.bias,
        "dtype": f"torch.{DTYPES[problem.dtype_a].torch}",
        "q_dtype_w": f"torch.{DTYPES[problem.dtype_b].torch}",
        "outdtype": f"torch.{DTYPES[problem.dtype_c].torch}",
        "scaleAB": problem.op == "a8w8",
        "bpreshuffle": False,
        "libtype": LIBTYPE_PREDICTED if winner.time_source == PREDICTED else LIBTYPE,
        "solidx": 0,
        "kernelId": 0,
        "splitK": winner.config.SPLIT_K,
        "us": round(winner.duration_us, 4),
        "kernelName": winner.config.name,
        "err_ratio": error_ratio,
        "errRatio": error_ratio,
        "tflops": round(problem.tflops(winner.duration_us), 2),
        "bw": round(gb_per_s(problem, winner.duration_us), 2),
        "interval_low_us": _rounded(low_us),
        "interval_high_us": _rounded(high_us),
        "samples": winner.samples,
        "discarded": winner.discarded,
        "runner_up": winner.runner_up or None,
        "runner_up_us": _rounded(winner.runner_up_us),
        "margin": _rounded(winner.margin),
        "vendor_us": _rounded(winner.vendor_us),
        "choice": winner.choice,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _row(cells: Mapping[str, str], defaults: GemmDefaults) -> AiterRow:
    values, _ = entry_values(cells)
    values["activation"] = "none"
    libtype = cells.get("libtype", "")
    name = cells["kernelName"]
    cu_num = number(cells["cu_num"]) if cells.get("cu_num") else None
    if cu_num is not None and not isinstance(cu_num, int):
        raise InputError(f"cu_num = {shown(cu_num)} is not a number of compute units")
    us = _float("us", cells["us"])
    error_ratio = _float("err_ratio", cells.get("err_ratio") or cells.get("errRatio") or "")
    said = {name: cells[name] for name in EXTRA_COLUMNS if cells.get(name)}
    times = {name: _float(name, said[name]) for name in _TIMES if name in said}
    return AiterRow(
        problem=resolve(values, defaults, arch=None).problem,
        gfx=cells.get("gfx") or None,
        cu_num=cu_num,
        libtype=libtype,
        kernel_name=name,
        duration_us=us if us is not None and math.isfinite(us) and us > 0 else None,
        error_ratio=error_ratio if error_ratio is not None and 0 <= error_ratio <= 1 else None,
        config=parse_config(name) if libtype in (LIBTYPE, LIBTYPE_PREDICTED) else None,
        bpreshuffle=bool(cells.get("bpreshuffle")) and flag("bpreshuffle", cells["bpreshuffle"]),
        interval_us=interval("interval", times),
        samples=_count("samples", said),
        discarded=_count("discarded", said),
        runner_up=said.get("runner_up", ""),
        runner_up_us=positive("runner_up_us", times),
        margin=positive("margin", times),
        vendor_us=positive("vendor_us", times),
        choice=choice_of(said),
    )


def _count(name: str, said: Mapping[str, str]) -> int | None:
    value = number(said[name]) if name in said else None
    if value is not None and not isinstance(value, int):
        raise InputError(f"{name} = {shown(value)} is not a count")
    return value


def _float(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} = {shown(text)} is not a number") from None
