"""`genkern shapes`: lists the sizes that one GPU computes for a model, from the model's config.json."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.options import row_counts
from genkern.errors import OutputError
from genkern.file_io import require_writable, shown_path, write_whole
from genkern.files import tune_gemm_yaml
from genkern.files.file_kind import LIST_HELP, kind_of, list_text, require_list_or_none
from genkern.files.model_config import QUANTIZATIONS, ModelConfig, read_model
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.packing.models.engines import ENGINES, SERVERS, Engine
from genkern.packing.models.families import families
from genkern.packing.models.products import Product, products_of

_MOST_GPUS = 1024
_gpus = number(f"a number of GPUs from 1 to {_MOST_GPUS}", 1, _MOST_GPUS, integer=True)


def parse_shapes(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern shapes`. Raises InputError; SystemExit(0) after printing for --help."""
    return shapes_parser().parse_args(argv)


def shapes_parser() -> Parser:
    """Return the parser of `genkern shapes`, whose help is the reference of the command."""
    p = Parser(
        prog="genkern shapes",
        description="List the GEMMs that one GPU computes for a model, each with the layer it comes from.",
    )
    group = p.add_argument_group("which model")
    group.add_argument(
        "--model_dir",
        "--model-dir",
        metavar="DIR",
        required=True,
        help="the model's folder, or its config.json; types that genkern's table lacks (docs/models.md) need "
        "transformers installed",
    )
    add_model_options(group)
    group.add_argument("-o", "--output", metavar="FILE", required=True, help=LIST_HELP)
    group.add_argument("--overwrite", action="store_true", help="replace an existing list; never a results file")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def add_model_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that determine a model's sizes, besides the model."""
    group.add_argument("--tp", type=_gpus, default=1, metavar="N", help="GPUs that share each layer (default: 1)")
    group.add_argument(
        "--engine",
        choices=sorted(ENGINES),
        help=f"layers and M of this engine (default: merged layers, M of {','.join(map(str, SERVERS.rows))})",
    )
    group.add_argument(
        "--all_buckets",
        action="store_true",
        help="list every M that the engine pads to, not only powers of two",
    )
    group.add_argument(
        "--nsets",
        type=row_counts,
        metavar="M,M,...",
        help="list these M (tokens per call) instead; the head has those of decoding",
    )
    group.add_argument(
        "--quantization",
        choices=list(QUANTIZATIONS),
        help="take weights as stored in this format (fp8: a scale per row; w4: groups of 128)",
    )
    group.add_argument(
        "--like", choices=families(), metavar="TYPE", help="read the config as this model_type of genkern's table"
    )


def run_shapes(options: argparse.Namespace, console: Console) -> int:
    """Write the list, and print the number of its sizes and the notes. Raises InputError or OutputError."""
    require_list_or_none(options.output, options.overwrite)
    require_writable(options.output)
    config = config_of(options.model_dir, options)
    read = (options.model_dir, os.path.join(options.model_dir, "config.json"))
    if os.path.realpath(options.output) in map(os.path.realpath, read):
        raise OutputError(f"{shown_path(options.output)} is the model's configuration; name another file")
    engine = engine_of(options)
    products, told = products_of(config, engine, options.tp, rows_of_engine(options, engine))
    problems = list(dict.fromkeys(problem for product in products for problem in product.problems))
    # In YAML, a comment names the layer of each size.
    in_yaml = kind_of(options.output) is tune_gemm_yaml
    lines = lines_of(products, config, options.tp, told) if in_yaml else [list_text(problems, options.output)]
    write_whole(options.output, "".join(lines))
    for note in told:
        console.print(note)
    console.print(
        f"{len(problems)} sizes of {config.family}, one of {options.tp} GPUs, are in {shown_path(options.output)}"
    )
    return 0


def model_list(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Return the size list of --model_dir with --tp and --nsets in YAML, and notes on the layers that the list lacks.

    Raises InputError.
    """
    config = read_model(options.model_dir)
    products, told = products_of(config, SERVERS, options.tp, options.nsets or SERVERS.tuned)
    return "".join(lines_of(products, config, options.tp, told)), tuple(told)


def config_of(model: str, options: argparse.Namespace) -> ModelConfig:
    """Return the model's configuration, changed as the options say. Raises InputError."""
    config = read_model(model)
    config = config.like(options.like) if options.like else config
    return config.stored_as(options.quantization) if options.quantization else config


def engine_of(options: argparse.Namespace) -> Engine:
    """Return the engine that the options name."""
    return ENGINES[options.engine] if options.engine else SERVERS


def rows_of_engine(options: argparse.Namespace, engine: Engine) -> tuple[int, ...]:
    """Return the numbers of rows for which sizes are listed."""
    rows: tuple[int, ...] = options.nsets or (engine.rows if options.all_buckets else engine.tuned)
    return rows


def lines_of(products: Sequence[Product], config: ModelConfig, tp: int, notes: Sequence[str] = ()) -> list[str]:
    """Return the lines of the list: the notes, then each size under the first layer that has it."""
    lines = [f"# {config.family}, tensor parallel {tp}: the GEMMs of one GPU.\n"]
    lines += [f"# {note}.\n" for note in notes]
    written: set[GemmProblem] = set()
    for product in products:
        new = [each for each in dict.fromkeys(product.problems) if each not in written]
        again = "" if new or not product.problems or product.is_routed else "; listed above"
        absent = "; not in this list" if product.is_routed and not product.problems else ""
        lines += [f"# {product.layer}: {product.said}{again}{absent}\n", *map(size_line, new)]
        written.update(new)
    return lines
