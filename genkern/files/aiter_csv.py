"""Reads and writes AITER's CSV files: untuned lists, and tuned tables, in which genkern's kernels have libtype genkern.

Source: ROCm/aiter, aiter/configs/bf16_tuned_gemm.csv and a8w8_bpreshuffle_tuned_gemm.csv (2026-08). Files from before
    2026-04 have no `gfx` column. `bw` is in GB/s and counts each operand once. genkern's own columns (EXTRA_COLUMNS)
    follow AITER's, which ignores them: aiter/tuned_gemm.py reads columns by name with pandas.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from genkern.decoding import shown
from genkern.errors import InputError, ResultsError
from genkern.files import aiter_fmoe
from genkern.files.aiter_columns import (
    EXTRA_COLUMNS,
    REMARKS,
    ROWWISE,
    SAYING_COLUMNS,
    TUNED_COLUMNS,
    UNTUNED_BY_OP,
    UNTYPED,
    check_columns,
    entry_values,
    flag,
    is_shuffled,
    meant_by,
    number,
    rowwise,
    stated_format,
)
from genkern.files.config_entry import parse_config
from genkern.files.flat_csv import Row, read_table
from genkern.files.format_in_names import PLAIN, StatedFormat, format_in_file_name
from genkern.files.gemm_entry import GemmDefaults, SizeItem, names_types, of_format, resolve, widths_of
from genkern.gemm.dtypes import DTYPES, parse_dtype
from genkern.gemm.gpus import known_archs
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, PREDICTED
from genkern.ops.fields import own_text
from genkern.ops.op import get_op
from genkern.result.result import LIBRARY, Result
from genkern.result.row import NAMES, result_of, values_of
from genkern.timing.libraries import HIPBLASLT, AsmKernel, asm_kernel, is_call, stored_algorithm
from genkern.timing.trust_rank import SHARED

# libtype of predicted times, since no column has the source of a time. AITER skips rows of unknown libraries.
LIBTYPE_PREDICTED = "genkern_predicted"
ONE_ROW_A_KEY = True
EMPTY = ""
# AITER's libtype of its assembly kernels.
_ASM = "asm"
LIBTYPE_SHARED = f"{LIBRARY}{SHARED}"
_SOURCES = {LIBRARY: "measured", LIBTYPE_SHARED: f"measured{SHARED}", LIBTYPE_PREDICTED: PREDICTED}
# genkern's own columns that are keys of its rows (genkern.result.row).
_OWN_KEYS = tuple(name for name in EXTRA_COLUMNS if name in NAMES)


def size_items(text: str, where: str) -> Iterator[SizeItem]:
    """Yield the sizes of an untuned or tuned table. Raises InputError."""
    table = read_table(text, where, InputError, results="us")
    if aiter_fmoe.is_table(table.columns):
        yield from _expert_items(text, where)
        return
    try:
        check_columns(table.columns)
    except InputError as exc:
        raise InputError(f"{where}: {exc}") from None
    misfits = (f"left out: {len(table.misfits)} {table.misfits_text}",) if table.misfits else ()
    for place, row in enumerate(table.rows):
        try:
            values = entry_values(row.values)
            said, said_where = stated_format(row.values)
        except InputError as exc:
            raise InputError(f"{where}, line {row.line}: {exc}") from None
        notes = (ROWWISE,) if row.values.get("q_dtype_w") and not rowwise() else ()
        meant = {op: meant_by(op) for op in TUNED_COLUMNS}
        formats = SizeItem(row.line, values, UNTYPED, said=said, said_where=said_where, meant=meant)
        yield replace(formats, notes=notes, file_notes=misfits if place == 0 else ())


def _expert_items(text: str, where: str) -> Iterator[SizeItem]:
    """Yield the stages of a table of fused MoE; the first one's notes say which rows were left out.

    Raises InputError if the table cannot be read, or if all its rows are left out.
    """
    left_out: Counter[str] = Counter()
    items = [SizeItem(row.line, values, UNTYPED) for row, values in aiter_fmoe.stages(text, where, left_out)]
    reasons = [f"{count} {why}" for why, count in left_out.items()]
    if reasons and not items:
        raise InputError(f"{where}: genkern has no kernels for its {left_out.total()} rows: {'; '.join(reasons)}")
    notes = tuple(f"left out: {reason}" for reason in reasons)
    if never_read := aiter_fmoe.never_read(int(str(item.values["M"])) for item in items):
        notes += (never_read,)
    yield from (replace(item, file_notes=notes) for item in items[:1])
    yield from items[1:]


def untuned_text(problems: Sequence[GemmProblem], where: str) -> str:
    """Return AITER's untuned list of these problems, which are of one format.

    Raises InputError if AITER's columns cannot express a problem, or if neither the columns nor the file's name say the
    format.
    """
    ops = sorted({problem.op for problem in problems})
    if len(ops) != 1:
        raise InputError(
            f"{where}: AITER has a list for each format, and these are {', '.join(ops)}: name a YAML file, or take one "
            "of them by `genkern merge --op`"
        )
    columns = UNTUNED_BY_OP.get(ops[0], ())
    for problem in problems:
        if reason := obstacle(problem) or ("" if columns else f"AITER has no untuned list of {ops[0]} here"):
            raise InputError(f"{where} cannot hold {problem.size}: {reason}: name a YAML file")
        if "dtype" not in columns and "q_dtype_w" not in columns and problem.dtype_a not in _default_types(problem.op):
            raise InputError(f"{where} has no column for {problem.dtype_a} of {problem.size}: name a YAML file")
    said = format_in_file_name(os.path.basename(where)) | StatedFormat(batched="B" in columns)
    if "dtype" not in columns and said.op_name("") != ops[0] and f"{said.op_name('')}_blockscale" != ops[0]:
        raise InputError(f"{where}: its columns do not identify {ops[0]}: name it {ops[0]}_untuned_gemm.csv")
    rows = (_size_cells(problem) for problem in problems)
    return _line(columns) + "".join(_line([cells[name] for name in columns]) for cells in rows)


def read_rows(text: str, where: str, defaults: GemmDefaults) -> Iterator[Result]:
    """Yield the rows of a tuned table of AITER or genkern, with or without `gfx`, in file order.

    Types that have no column come from `defaults`. A time is None if AITER did not measure it (us = 0), or if the
    candidate failed (-1 or inf). Raises ResultsError (one line: file, line, what) for any other file, such as an
    untuned list or a table of another operator.
    """
    columns, rows = _table(text, where)
    if missing := {"us", "kernelName"} - set(columns):
        raise ResultsError(f"{where}: column {min(missing)} is missing; this is a list of sizes, not of results")
    for row in rows:
        try:
            found = _row(row.values, defaults, format_in_file_name(os.path.basename(where)))
        except InputError as exc:
            raise ResultsError(f"{where}, line {row.line}: {exc}") from None
        yield replace(found, line=row.line)


def split(text: str, where: str, lines: Sequence[int]) -> tuple[str, list[str]]:
    """Return the header and the exact text of each row, with the blank lines that belong to it. Raises ResultsError."""
    _, rows = _table(text, where)
    written = list(io.StringIO(text, newline=""))
    bounds = [*(row.first_line - 1 for row in rows), len(written)]
    texts = ["".join(written[start:end]) for start, end in itertools.pairwise(bounds)]
    return "".join(written[: bounds[0]]), texts


def render(winners: Sequence[Result], compute_units: int, head: str) -> tuple[str, list[str]]:
    """Return the header and a line for each of `winners`, which are of one op.

    `head` is the header of the file that they go to, whose columns they get; "" for a new file, which gets
    EXTRA_COLUMNS.
    """
    op = winners[0].problem.op if winners else "a16w16"
    columns = _columns(head) or _all_columns(op)
    lines = [
        _line([cells.get(name) for name in columns]) for cells in (_cells(winner, compute_units) for winner in winners)
    ]
    return head or _line(columns), lines


def obstacle(problem: GemmProblem) -> str:
    """Return why AITER's tables cannot hold results of this problem; "" if they can."""
    if not problem.row_major_a or problem.row_major_b:
        return "AITER's rows mean row-major A and [N, K] weights only"
    if problem.op not in TUNED_COLUMNS:
        return no_room([problem.op], "")
    if problem.activation != "none":
        return f"AITER's rows have no column for an activation ({problem.activation})"
    meant = meant_by(problem.op)
    own = {name: value for name, value in problem.own if name != "batch_size"}
    if own != meant:
        said = own_text(meant.items()) or "none of a format's own fields"
        return f"AITER's rows mean {said}, not {own_text(own.items()) or 'its default'}"
    if problem.op == "a16w16":
        return "" if problem.dtype_a == problem.dtype_b else "AITER's rows have one type for A and B"
    if problem.bias or problem.dtype_c != "bf16" or problem.dtype_a != problem.dtype_b:
        return f"AITER's {problem.op} rows have no bias, bf16 output and one input type"
    if problem.op == "a4w4_blockscale" and problem.dtype_a != "int8":
        return f"AITER's {problem.op} rows are of e2m1 (int8)"
    if problem.op == "batched_a16w16" and problem.dtype_a != "bf16":
        return f"AITER's {problem.op} rows are of bf16"
    return ""


def no_room(ops: Sequence[str], head: str) -> str:
    """Return why a table with this header ("" for a new one) cannot take rows of `ops`; "" if it can."""
    if len(ops) > 1:
        return f"AITER's CSV has other columns for each of {', '.join(ops)}"
    if ops[0] not in TUNED_COLUMNS:
        return f"AITER has no table for {ops[0]}"
    own, columns = TUNED_COLUMNS[ops[0]], _columns(head)
    # Files of earlier versions of genkern have fewer columns of genkern's own.
    if head and (columns[: len(own)] != own or not {*columns[len(own) :]} <= {*_all_columns(ops[0]), *REMARKS}):
        return f"it has the columns {','.join(columns)}, this run writes {','.join(own)}"
    return ""


def _table(text: str, where: str) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    table = read_table(text, where, ResultsError)
    if aiter_fmoe.is_table(table.columns):
        raise ResultsError(
            f"{where} is a table of AITER's fused MoE, which genkern reads as a list of sizes: its results are in "
            f"{where}.yaml"
        )
    try:
        check_columns(table.columns)
    except InputError as exc:
        raise ResultsError(f"{where}: {exc}") from None
    return table.columns, table.rows


def _all_columns(op: str) -> tuple[str, ...]:
    """Return the columns of a new table of a format, with columns that name the format if AITER's columns do not."""
    saying = () if op in PLAIN else SAYING_COLUMNS
    return tuple(dict.fromkeys((*TUNED_COLUMNS[op], *EXTRA_COLUMNS, *saying)))


def _columns(head: str) -> tuple[str, ...]:
    return read_table(head, "", ResultsError).columns if head else ()


def _line(cells: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _cells(winner: Result, compute_units: int) -> dict[str, object]:
    problem, config, values = winner.problem, winner.known_config, values_of(winner)
    error_ratio = None if (found := values.get("error_ratio")) is None else round(found, 6)
    assembly = _assembly(winner)
    return {
        "gfx": winner.arch,
        "cu_num": compute_units,
        **_size_cells(problem),
        "libtype": _libtype(winner),
        "solidx": _solution(winner) or 0,
        "kernelId": 0,
        "splitK": config.SPLIT_K if assembly is None else assembly.splits,
        "us": values["time_us"],
        "kernelName": config.name if assembly is None else assembly.kernel,
        "err_ratio": error_ratio,
        "errRatio": error_ratio,
        "tflops": round(values["TFLOPS"], 2),
        "bw": round(values["GBps"], 2),
        **{name: values.get(name) for name in _OWN_KEYS},
        "config": None if assembly is None else config.name,
        "op": problem.op,
        "dtype_a": problem.dtype_a,
    }


def _default_types(op: str) -> set[str]:
    """Return the types of A that rows without a column for it imply, on any architecture."""
    return {parse_dtype(get_op(op).default_dtypes(arch)[0], arch).name for arch in known_archs()}


def _size_cells(problem: GemmProblem) -> dict[str, object]:
    """Return the cells of tables and untuned lists that describe a problem, by column."""
    return {
        "B": problem.batch,
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "bias": problem.bias,
        "dtype": f"torch.{DTYPES[problem.dtype_a].torch}",
        "q_dtype_w": f"torch.{DTYPES[problem.dtype_b].torch}",
        "outdtype": f"torch.{DTYPES[problem.dtype_c].torch}",
        "scaleAB": problem.op == "a8w8",
        "bpreshuffle": False,
    }


def _libtype(winner: Result) -> str:
    if winner.time_source == PREDICTED:
        return LIBTYPE_PREDICTED
    if winner.time_source.endswith(SHARED):
        return LIBTYPE_SHARED
    if _assembly(winner) is not None:
        return _ASM
    return LIBRARY if _solution(winner) is None else HIPBLASLT


def _solution(winner: Result) -> int | None:
    """Return hipBLASLt's index of the solution that won, or AITER's of its assembly kernel; None if something else won.

    AITER's own operator then calls it (libtype hipblaslt and solidx; aiter/tuned_gemm.py ignores kernelName there). The
    index is valid for the same library on the same GPU only.
    """
    if (kernel := _assembly(winner)) is not None:
        return kernel.solution
    kept = stored_algorithm(winner.vendor) if _is_another_s(winner) else None
    return None if kept is None else kept.solution


def _assembly(winner: Result) -> AsmKernel | None:
    """Return the assembly kernel of AITER that won; None if something else won.

    AITER's operator finds it by kernelName and splitK.
    """
    return asm_kernel(winner.vendor) if _is_another_s(winner) else None


def _is_another_s(winner: Result) -> bool:
    """Return True if a library's call won, and the table has a column for its index."""
    return winner.choice != CONFIG_WINS and "solidx" in TUNED_COLUMNS.get(winner.problem.op, ())


def _row(cells: Mapping[str, str], defaults: GemmDefaults, by_name: StatedFormat) -> Result:
    values = entry_values(cells)
    typed = names_types(values, defaults)
    said = by_name | StatedFormat(shuffled=is_shuffled(cells), batched=bool(cells.get("B")))
    op = values.get("op") if cells.get("op") else said.op_name(widths_of(values))
    if op in TUNED_COLUMNS and (said.special or cells.get("op")):
        values = of_format(str(op), {**meant_by(str(op)), **values, "op": op})
    values["activation"] = "none"
    libtype = cells.get("libtype", "")
    name = cells["kernelName"]
    if libtype in (HIPBLASLT, _ASM) and is_call(cells.get("vendor") or ""):
        # genkern wrote this row for AITER's operator; its config is in a column of genkern's own.
        libtype, name = LIBRARY, cells.get("config") or name
    cu_num = number(cells["cu_num"]) if cells.get("cu_num") else None
    if cu_num is not None and not isinstance(cu_num, int):
        raise InputError(f"cu_num = {shown(cu_num)} is not a number of compute units")
    us = _float("us", cells["us"])
    error_ratio = _float("err_ratio", cells.get("err_ratio") or cells.get("errRatio") or "")
    # Other libraries' rows may have an fp8 encoding that genkern does not use on their gfx: only genkern's rows are
    # checked against gfx.
    tuned_on = cells.get("gfx", "") if libtype in _SOURCES else ""
    problem = resolve(values, defaults, arch=None, tuned_on=tuned_on).problem
    is_ours = libtype in _SOURCES
    keys: dict[str, object] = {name: cells[name] for name in _OWN_KEYS if cells.get(name)}
    if "batch_invariant" in keys:
        keys["batch_invariant"] = flag("batch_invariant", cells["batch_invariant"])
    # AITER writes 0 for a time that it did not measure, and -1 or inf for a candidate that failed.
    if us is not None and math.isfinite(us) and us > 0:
        keys["time_us"] = us
    if error_ratio is not None and 0 <= error_ratio <= 1:
        keys["error_ratio"] = error_ratio
    return result_of(
        {**keys, "arch": cells.get("gfx") or None, "compute_units": cu_num, "time_source": _SOURCES.get(libtype)},
        problem,
        parse_config(name) if is_ours else None,
        from_text=True,
        kernel_name="" if is_ours else name,
        library=LIBRARY if is_ours else libtype,
        bpreshuffle=is_shuffled(cells) and "shuffle" not in problem.op,
        typed=typed,
    )


def _float(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} = {shown(text)} is not a number") from None
