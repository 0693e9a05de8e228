"""`genkern compile`: compiles kernels, without a GPU or PyTorch, into a folder that another machine measures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import SHARD_HELP, Parser, number, read_shard, shard_of
from genkern.cli.kernel_cache.kernels import add_compiling, compiled_entries, note_lost, sizes_for
from genkern.cli.target import add_gpu, require_gpu
from genkern.cluster.work_folder import WorkFolder
from genkern.compile.kernels_file import write_kernels
from genkern.errors import InputError
from genkern.file_io import read_text, require_absent, require_writable, shown_path, write_whole
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.release import cute_installed
from genkern.ops.op import op_names
from genkern.search.strategies import PREDICTED, chosen_strategy
from genkern.space.languages import space_for_libraries
from genkern.space.space import Space, shipped_names
from genkern.timing.libraries import ALL, CUTE, parse_libraries

_USUAL = f"{PREDICTED}:64"
_positive = number("a whole number from 1 to 100000", 1, 100_000, integer=True)


def parse_compile(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern compile`. Raises InputError; SystemExit(0) after printing for --help."""
    options = compile_parser().parse_args(argv)
    require_gpu(options)
    options.jobs = options.jobs or len(os.sched_getaffinity(0))
    options.most = check_search(options)
    return options


def check_search(options: argparse.Namespace) -> int:
    """Return the most kernels to compile per size: N of --search predicted:N, or sys.maxsize without N.

    Raises InputError for a strategy that needs measurements.
    """
    if (strategy := chosen_strategy(options.search)).name != PREDICTED:
        raise InputError(
            f"--search {options.search}: it needs measurements, and nothing is measured here: give {PREDICTED}[:N]"
        )
    return strategy.number or sys.maxsize


def compile_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern compile",
        description="Compile kernels for sizes into a folder for `genkern measure`. Neither GPU nor PyTorch is needed.",
    )
    group = p.add_argument_group("which kernels")
    add_chosen(group)
    group.add_argument("--shard", type=read_shard, metavar="I/N", help=SHARD_HELP)
    group.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the folder to write")
    group.add_argument("--overwrite", action="store_true", help="replace the files of an earlier compile")
    add_compiling(group)
    return p


def add_chosen(group: argparse._ArgumentGroup) -> None:
    """Add the options that determine which kernels are compiled, and for which GPU."""
    add_gpu(group)
    group.add_argument(*("-i", "--gemm_size_file"), nargs="+", required=True, metavar="SIZES", help="size lists")
    group.add_argument("--op", nargs="+", choices=op_names(), metavar="OP", help="only sizes of these formats")
    group.add_argument("--space", metavar="FILE", help="as when tuning")
    group.add_argument(
        "--search",
        metavar="NAME",
        default=_USUAL,
        help=f"predicted:N: the N kernels that a model prefers; predicted: all (default: {_USUAL})",
    )


def chosen_spaces(options: argparse.Namespace, problems: Sequence[GemmProblem]) -> tuple[list[str], dict[str, Space]]:
    """Return the libraries whose kernels are compiled, and the space of each format. Raises InputError."""
    libraries = [name for name in parse_libraries(ALL).split(",") if name != CUTE or cute_installed()]
    ops = {each.op for each in problems}
    return libraries, {op: space_for_libraries(options.space, options.arch, op, libraries) for op in ops}


def run_compile(options: argparse.Namespace, console: Console) -> int:
    """Rank and compile kernels, and write the folder. Raises InputError or OutputError."""
    folder = WorkFolder(Path(options.output))
    require_absent(str(folder.manifest_path), options.overwrite)
    require_writable(str(folder.manifest_path))
    problems = shard_of(sizes_for(options, console), options.shard)
    if not problems:
        raise InputError(f"--shard {options.shard}: there are fewer sizes than shards")
    libraries, spaces = chosen_spaces(options, problems)
    made = compiled_entries(problems, spaces, options.most, None, options, console)
    space = options.space or ""
    if space and space not in shipped_names():
        write_whole(str(folder.own_space), read_text(space))
        space = folder.own_space.name
    length = write_kernels(str(folder.kernels), made.files, made.made_for)
    folder.finish(problems, options.arch, made.made_for, space, ",".join(libraries), options.search)
    console.print(
        f"{len(made.files)} kernels ({made.refused} refused) for {len(problems)} sizes, {options.search}: {length} "
        f"bytes in {shown_path(options.output)}"
    )
    console.print(f"to measure: genkern measure {shown_path(options.output)}, on a machine with a {options.arch} GPU")
    note_lost(made, console)
    return 0
