"""`genkern shapes`: a model's config.json as a list of the sizes that one GPU computes for it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.errors import InputError, OutputError
from genkern.files import require_writable, shown_path, write_whole
from genkern.formats.kind import require_list_or_none
from genkern.formats.model_config import ModelConfig, Stored, read_model
from genkern.formats.said_format import BATCHED
from genkern.formats.tune_gemm_yaml import size_line
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.ops.op import get_op
from genkern.packing.model_layers import Experts, Gemm, layers_of

# Batches while decoding, from one user to a busy server, and chunks of prefill (input_sizes/README.md).
_ROWS = (1, 16, 64, 256, 1024, 4096)
# Up to so many rows a batch decodes.
_MOST_DECODING = 256
_MOST_GPUS = 1024
_gpus = number(f"a number of GPUs from 1 to {_MOST_GPUS}", 1, _MOST_GPUS, integer=True)


def parse_shapes(argv: Sequence[str]) -> argparse.Namespace:
    """The options of `genkern shapes`. Raises InputError; SystemExit(0) after printing for --help."""
    options = shapes_parser().parse_args(argv)
    if options.output.lower().endswith(".csv"):
        raise InputError(f"-o {options.output}: AITER's CSV cannot say which layer a size is of: name a YAML file")
    return options


def shapes_parser() -> Parser:
    """The parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern shapes",
        description="List the GEMMs that one GPU computes for a model, each with the layer it comes from.",
    )
    group = p.add_argument_group("whose sizes")
    group.add_argument(
        "--model_dir",
        "--model-dir",
        metavar="DIR",
        required=True,
        help="the model's folder, or its config.json: Llama, Mistral, Mixtral, Qwen2 and 3 and their MoE, "
        "DeepSeek-V2 and V3, Kimi-K2, gpt-oss, Gemma 1 to 3, Phi",
    )
    group.add_argument("--tp", type=_gpus, default=1, metavar="N", help="GPUs that share each layer (default: 1)")
    group.add_argument(
        "--nsets",
        type=_row_counts,
        default=_ROWS,
        metavar="M,M,...",
        help=f"rows of A: tokens that are computed at once (default: {','.join(map(str, _ROWS))}); the head has those "
        f"up to {_MOST_DECODING}",
    )
    group.add_argument("-o", "--output", metavar="FILE", required=True, help="the list to write, in YAML")
    group.add_argument("--overwrite", action="store_true", help="replace a list that is there; never results")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def _row_counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10}){0,999}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of numbers, such as 1,16,64")
    found = sorted({int(each) for each in text.split(",")})
    if not 1 <= found[0] <= found[-1] <= MAX_DIMENSION:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has a number that is not from 1 to {MAX_DIMENSION}")
    return tuple(found)


def run_shapes(options: argparse.Namespace, console: Console) -> int:
    """Write the list, and say what is in it and what not. Raises InputError or OutputError."""
    require_list_or_none(options.output, options.overwrite)
    require_writable(options.output)
    config = read_model(options.model_dir)
    read = (options.model_dir, os.path.join(options.model_dir, "config.json"))
    if os.path.realpath(options.output) in map(os.path.realpath, read):
        raise OutputError(f"{shown_path(options.output)} is the model's configuration; name another file")
    lines, sizes, told = list_of(config, options.tp, options.nsets)
    write_whole(options.output, "".join(lines))
    for note in told:
        console.print(note)
    console.print(f"{sizes} sizes of {config.family}, one of {options.tp} GPUs, are in {shown_path(options.output)}")
    return 0


def list_of(config: ModelConfig, tp: int, rows: Sequence[int]) -> tuple[list[str], int, list[str]]:
    """The lines of the list, how many sizes it has, and what a person should hear. Raises InputError."""
    quantised, note = config.stored()
    told = [f"{note}: other weights are taken as {config.plain.dtype_b}"] if note else []
    lines = [f"# {config.family}, tensor parallel {tp}: the GEMMs of one GPU.\n"]
    written: set[GemmProblem] = set()
    for part in layers_of(config, tp):
        if not isinstance(part, Gemm):
            stages, why = _stages(part, rows, config.plain if config.is_kept(part.modules) else quantised)
            lines.append(f"# {part.layer}: {part.said}{'' if stages else '; not in this list'}\n")
            told += [f"{part.layer}: not in the list: {why}"] if why else []
            new = [each for each in stages if each not in written]
            lines += map(size_line, new)
            written.update(new)
            continue
        # Servers keep these in 16 bits.
        plain = part.batch or "router" in part.modules or config.is_kept(part.modules)
        stored = config.plain if plain else quantised
        problems = [_problem(part, m, stored) for m in _of_rows(part, rows)]
        reason = next((reason for each in problems if (reason := get_op(each.op).refuse(each, ""))), "")
        if reason:
            told.append(f"{part.layer}: {part.n}x{part.k} is taken as {config.plain.dtype_b}: {reason}")
            problems = [_problem(part, each.M, config.plain) for each in problems]
        new = [each for each in problems if each not in written]
        again = "" if new or not problems else "; listed above"
        lines += [f"# {part.layer}: {part.said}{again}\n", *map(size_line, new)]
        written.update(new)
    return lines, len(written), told


def _stages(experts: Experts, rows: Sequence[int], stored: Stored) -> tuple[list[GemmProblem], str]:
    """Both stages of gated experts for each number of tokens, or none and why."""
    if experts.differs:
        return [], experts.differs
    found: list[GemmProblem] = []
    for tokens in rows:
        both = stored.experts(tokens, experts.count, experts.top, experts.width, experts.hidden)
        if both is None:
            return [], f"genkern has no experts with weights as {stored.op} stores them"
        if reason := next((reason for each in both if (reason := get_op(each.op).refuse(each, ""))), ""):
            return [], reason
        found += both
    return found, ""


def _of_rows(gemm: Gemm, rows: Sequence[int]) -> list[int]:
    if gemm.rows == "all":
        return list(rows)
    chosen = [m for m in rows if (m <= _MOST_DECODING) == (gemm.rows == "decode")]
    # A head is computed for whatever there is.
    return chosen or list(rows[:1] if gemm.rows == "decode" and not gemm.batch else ())


def _problem(gemm: Gemm, m: int, stored: Stored) -> GemmProblem:
    types = stored.dtype_a, stored.dtype_b, stored.dtype_c
    if gemm.batch:
        return GemmProblem(m, gemm.n, gemm.k, BATCHED + stored.op, *types, own=(("batch_size", gemm.batch),))
    return GemmProblem(m, gemm.n, gemm.k, stored.op, *types, bias=gemm.bias, own=stored.own)
