"""AITER's fused MoE tables, untuned and tuned CSV: a row is read as the sizes of both stages, and winners are written.

Source: ROCm/aiter, aiter/configs/untuned_fmoe.csv, tuned_fmoe.csv and model_configs/*_fmoe.csv (2026-08). For each
    expert, a row's gate_up is [2 inter_dim, model_dim] and its down [model_dim, inter_dim], without padding.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from genkern.decoding import shown
from genkern.errors import InputError
from genkern.files.flat_csv import Row, Table, read_table
from genkern.files.peer_config import Candidate, Imported
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES, parse_dtype
from genkern.gemm.gpus import NOT_PRESENT, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import is_full
from genkern.ops.fields import parse_own
from genkern.ops.op import gb_per_s, get_op, refusal

NAME = "aiter_fmoe"
IS_FOLDER = False
OP = "fused_moe"
UNTUNED_COLUMNS = (
    *("token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a", "q_dtype_w", "q_type"),
    *("use_g1u1", "doweight_stage1"),
)
TUNED_COLUMNS = (
    *("gfx", "cu_num", *UNTUNED_COLUMNS, "block_m", "ksplit", "us1", "kernelName1", "err1", "us2", "kernelName2"),
    *("err2", "us", "run_1stage", "xbf16", "flat", "tflops", "bw"),
)
# Below this number of tokens AITER looks up the next power of two (get_padded_M in aiter/fused_moe.py, 2026-08).
_FIRST_TIER = 32768
# Prefix of a config's name in the columns that have the name of AITER's kernel.
_OURS = "genkern_"
_MOST_LISTED = 10
_SCALES = {"QuantType.per_Tensor": "per_tensor", "QuantType.per_Token": "per_token", "QuantType.per_1x128": "blocks"}
_NOT_QUANTISED = "QuantType.No"
_ACTIVATIONS = {"ActivationType.Silu": "silu", "ActivationType.Gelu": "gelu"}


def is_named(name: str) -> bool:
    """Return True if AITER gives a fused MoE table this name."""
    return name.endswith(("tuned_fmoe.csv", "fmoe.csv"))


def is_table(columns: Collection[str]) -> bool:
    """Return True if these are the columns of a fused MoE table."""
    return set(UNTUNED_COLUMNS) <= set(columns)


def read(text: str, where: str, name: str, arch: str | None) -> Imported:
    """Return the sizes of a table, two stages per row. Raises InputError if it is not a fused MoE table."""
    imported = Imported(arch or "")
    for _, values in stages(text, where, imported.left_out):
        own = parse_own(get_op(OP).fields, values)
        a, b, c = (str(values[key]) for key in ("dtype_a", "dtype_b", "dtype_c"))
        m, n, k = (int(str(values[key])) for key in "MNK")
        problem = GemmProblem(m, n, k, OP, a, b, c, activation=str(values["activation"]), own=own)
        if reason := refusal(problem, arch or ""):
            imported.left_out[reason] += 1
        else:
            imported.candidates.append(Candidate(problem))
    tokens = [candidate.problem.M for candidate in imported.candidates]
    if note := never_read(tokens):
        imported.notes[f"sizes: {note}"] += sum(bool(never_read([each])) for each in tokens)
    return imported


def stages(text: str, where: str, left_out: Counter[str]) -> Iterator[tuple[Row, dict[str, object]]]:
    """Yield both stages of each row, by the keys of sizes; count in `left_out` why rows are skipped. Raises
    InputError."""
    table = read_table(text, where, InputError, results="us")
    if missing := [name for name in UNTUNED_COLUMNS if name not in table.columns]:
        raise InputError(f"{where}: column {missing[0]} is missing; AITER's fused MoE has {','.join(UNTUNED_COLUMNS)}")
    if table.misfits:
        left_out[table.misfits_text] += len(table.misfits)
    for row in table.rows:
        try:
            made = _of_row(row.values)
        except InputError as error:
            raise InputError(f"{where}, line {row.line}: {error}") from None
        if isinstance(made, str):
            left_out[made] += 1
            continue
        for values in made:
            yield row, values


def _of_row(cells: Mapping[str, str]) -> tuple[dict[str, object], ...] | str:
    """Return the values of gate_up and down, or why genkern has no kernels for such experts. Raises InputError."""
    q_type, act = cells["q_type"], cells["act_type"]
    if q_type not in (_NOT_QUANTISED, *_SCALES):
        return f"fused MoE with {q_type[:40]}"
    if act not in _ACTIVATIONS:
        return f"fused MoE with {act[:40]}"
    if cells["use_g1u1"] not in ("1", "True") or cells["doweight_stage1"] not in ("0", "False"):
        return "fused MoE without a gate, or with routing weights in its first stage"
    tokens, hidden, width, experts, top_k = (_number(name, cells[name]) for name in UNTUNED_COLUMNS[:5])
    a, b, c = (_dtype(name, cells[name]) for name in ("q_dtype_a", "q_dtype_w", "dtype"))
    if a is None or b is None or c is None:
        return f"fused MoE of {cells['q_dtype_a'][:40]} and {cells['q_dtype_w'][:40]}"
    if a != b:
        return "fused MoE with operands of two types"
    common: dict[str, object] = {"op": OP, "dtype_a": a, "dtype_b": b, "dtype_c": c, "experts": experts, "top_k": top_k}
    if q_type != _NOT_QUANTISED:
        common["scales"] = _SCALES[q_type]
    gate = {"M": tokens, "N": width, "K": hidden, "stage": "gate_up", "activation": _ACTIVATIONS[act]}
    down = {"M": tokens, "N": hidden, "K": width, "stage": "down", "activation": "none"}
    return {**common, **gate}, {**common, **down}


def never_read(tokens: Iterable[int]) -> str:
    """Return a note that names the numbers of tokens that AITER never looks up; "" if it looks up all of `tokens`."""
    unread = sorted({each for each in tokens if each < _FIRST_TIER and each & (each - 1)})
    if not unread:
        return ""
    wanted = sorted({1 << each.bit_length() for each in unread})
    return (
        f"AITER rounds tokens up to a power of two below {_FIRST_TIER}, so it never looks up rows of "
        f"{_listed(unread)} tokens: tune {_listed(wanted)}"
    )


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _MOST_LISTED} more" if len(numbers) > _MOST_LISTED else ""
    return ", ".join(map(str, numbers[:_MOST_LISTED])) + more


def obstacle(problem: GemmProblem) -> str:
    """Return why a fused MoE table cannot express the problem; "" if it can."""
    if problem.op != OP:
        return f"{problem.op}: this table is of {OP}"
    if not problem.row_major_a or problem.row_major_b or problem.dtype_a != problem.dtype_b:
        return "another layout than row-major A and [N, K] weights, or operands of two types"
    if dict(problem.own).get("routing", "balanced") != "balanced":
        return "skewed routing, which the table cannot express"
    if is_full(problem):
        return "full sums of fp8, which the table cannot express"
    return "" if problem.activation in ("none", *_ACTIVATIONS.values()) else f"activation {problem.activation}"


def config_obstacle(config: Config) -> str:
    """Return "": the table holds names of any kernels."""
    return ""


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return the one table, with a row for each pair of stages. Raises InputError if a stage has no counterpart."""
    return {"": table_with("", "", sizes)}


def table_with(
    text: str, where: str, sizes: Collection[TimedSize], *, predicted: bool = False, compute_units: int = 0
) -> str:
    """Return the table in `text` ("" for a new one), extended by a row for each pair of stages.

    `compute_units` is the number of the GPU's compute units; 0 means the number in gpus.yaml for its name or
    architecture. Rows with other keys stay unchanged; a row of genkern with an equal key is replaced. Raises InputError
    for a row of another library with an equal key, since AITER uses one row per key, and if a stage has no counterpart.
    """
    table = read_table(text, where, InputError, results="us") if text.strip() else Table(TUNED_COLUMNS, ())
    if missing := [name for name in (*UNTUNED_COLUMNS, "kernelName1", "us") if name not in table.columns]:
        raise InputError(f"{where}: column {missing[0]} is missing; this is not a tuned table of AITER's fused MoE")
    rows = {}
    for gate, down in _pairs(sizes):
        device = gpu_for_device(gate.device.removesuffix(NOT_PRESENT), gate.arch)
        values = _cells(gate, down, predicted) | {"cu_num": compute_units or device.compute_units}
        cells = {name: "" if value is None else str(value) for name, value in values.items()}
        rows[_key(cells, table.columns)] = cells
    lines = list(io.StringIO(text, newline=""))
    dropped: set[int] = set()
    for row in table.rows:
        if _key(row.values, table.columns) not in rows:
            continue
        if not row.values["kernelName1"].startswith(_OURS):
            raise InputError(
                f"{where}, line {row.line}: another library's row for {row.values['token']} tokens of these experts "
                "stays; AITER takes one row per key"
            )
        dropped.update(range(row.first_line - 1, row.line))
    out = io.StringIO()
    writer = csv.DictWriter(out, table.columns, restval="", extrasaction="ignore", lineterminator="\n")
    if not text.strip():
        writer.writeheader()
    writer.writerows(rows.values())
    kept = "".join(line for number, line in enumerate(lines) if number not in dropped)
    return kept + ("\n" if kept and not kept.endswith("\n") else "") + out.getvalue()


def _key(cells: Mapping[str, str], columns: Collection[str]) -> tuple[str, ...]:
    """Return the key by which AITER finds a row; tables from before 2026-04 have no `gfx`."""
    return tuple(cells[name].strip() for name in ("gfx", "cu_num", *UNTUNED_COLUMNS) if name in columns)


def _pairs(sizes: Collection[TimedSize]) -> list[tuple[TimedSize, TimedSize]]:
    """Return each gate_up stage with its down stage. Raises InputError for a stage without counterpart."""
    by_problem = {(size.problem, size.arch): size for size in sizes}
    pairs = []
    # Gates with several activations share one row of stage down.
    paired: set[tuple[GemmProblem, str]] = set()
    for (problem, arch), gate in by_problem.items():
        if (of_down := other_stage(problem)) is None:
            continue
        if (down := by_problem.get((of_down, arch))) is None:
            raise InputError(f"{problem.size}: stage gate_up has no matching row of stage down")
        pairs.append((gate, down))
        paired |= {(problem, arch), (of_down, arch)}
    if alone := sorted(by_problem.keys() - paired):
        raise InputError(f"{alone[0][0].size}: stage down has no matching row of stage gate_up")
    return pairs


def other_stage(problem: GemmProblem) -> GemmProblem | None:
    """Return the down stage that belongs to a gate_up stage; None for any other problem."""
    if problem.op != OP or ("stage", "gate_up") not in problem.own:
        return None
    own = tuple(pair for pair in problem.own if pair[0] != "stage")
    return replace(problem, N=problem.K, K=problem.N, activation="none", own=own)


def _cells(gate: TimedSize, down: TimedSize, predicted: bool) -> dict[str, object]:
    prefix = f"{_OURS}predicted_" if predicted else _OURS
    problem, own = gate.problem, dict(gate.problem.own)
    wide = DTYPES[problem.dtype_a].size_bytes > 1
    scales = {ours: theirs for theirs, ours in _SCALES.items()}[str(own.get("scales", "per_tensor"))]
    us = gate.best_us + down.best_us
    flops = problem.flops + down.problem.flops
    return {
        "gfx": gate.arch,
        "token": problem.M,
        "model_dim": problem.K,
        "inter_dim": problem.N,
        "expert": own.get("experts", 1),
        "topk": own.get("top_k", 1),
        "act_type": {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[problem.activation],
        "dtype": f"torch.{DTYPES[problem.dtype_c].torch}",
        "q_dtype_a": f"torch.{DTYPES[problem.dtype_a].torch}",
        "q_dtype_w": f"torch.{DTYPES[problem.dtype_b].torch}",
        "q_type": _NOT_QUANTISED if wide else scales,
        "use_g1u1": 1,
        "doweight_stage1": 0,
        "block_m": gate.best.BLOCK_SIZE_M,
        "ksplit": 0,
        "us1": round(gate.best_us, 4),
        "kernelName1": f"{prefix}{gate.best.name}",
        "err1": None,
        "us2": round(down.best_us, 4),
        "kernelName2": f"{prefix}{down.best.name}",
        "err2": None,
        "us": round(us, 4),
        "run_1stage": 0,
        "xbf16": 0,
        "flat": 0,
        "tflops": round(flops / us * 1e-6, 2),
        "bw": round(sum(gb_per_s(each.problem, us) for each in (gate, down)), 2),
    }


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) < 1:
        raise InputError(f"{name} = {shown(text)} is not a whole number from 1")
    return int(text)


def _dtype(name: str, text: str) -> str | None:
    """Return genkern's name of a type; None if it does not have the type."""
    try:
        return parse_dtype(text[:40].removeprefix("torch.").removeprefix("dtypes."), "").name
    except InputError:
        return None
