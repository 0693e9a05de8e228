"""`genkern measure`: tunes the sizes of a folder that `genkern compile` wrote, with the kernels in it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import SHARD_HELP, Parser, read_shard
from genkern.cli.options import parse
from genkern.cli.target import versions
from genkern.cluster.batch_values import WHICH_GPUS, option_names
from genkern.cluster.work_folder import WorkFolder
from genkern.compile.kernels_file import MadeFor
from genkern.errors import InputError
from genkern.file_io import shown_path
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.kernels.kernel import Target
from genkern.search.strategies import CACHED

# Options of tuning that choose the search, and options that choose the device that measures.
_SEARCHES = frozenset(("--search", "--strategy", "--exhaustive", "--protocol"))
_DEVICES = WHICH_GPUS | {"--profiler"}
# Options that the folder determines.
TAKEN = frozenset(
    (
        "-i",
        "--gemm_size_file",
        "--input_file",
        "--untune_file",
        "--model_dir",
        "-m",
        "-n",
        "-k",
        "--arch",
        "--space",
        "--kernels",
    )
)


def parse_measure(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of tuning that follow from the folder and the other options.

    Raises InputError, also for a folder that is damaged or made for something else; SystemExit(0) after printing for
    --help.
    """
    own, others = measure_parser().parse_known_args(argv)
    given = option_names(others)
    if taken := sorted(given & TAKEN):
        raise InputError(f"{taken[0]}: the folder determines what is measured, and for which GPU (genkern compile)")
    folder = WorkFolder(Path(own.folder))
    manifest = folder.manifest()
    here = MadeFor.here(Target(*triton_target(gpu_for_arch(manifest.arch))), versions()["triton"])
    if (why := folder.mismatch(manifest, here)) and not own.may_compile:
        raise InputError(f"{shown_path(own.folder)}: {why}: compile with what is here, or give --may_compile")
    said = ["-i", str(folder.sizes), "--kernels", str(folder.kernels), "--arch", manifest.arch]
    said += ["--libtype", manifest.libraries] if "--libtype" not in given else []
    if manifest.space:
        said += ["--space", str(folder.own_space) if manifest.space == folder.own_space.name else manifest.space]
    if not (own.may_compile or given & _SEARCHES):
        said += ["--search", CACHED]
    options = parse([*others, *said, "-o", own.output or str(folder.results_of(own.shard))])
    options.shard, options.may_compile = own.shard, own.may_compile
    options.json, options.wide = own.json, own.wide
    # Without this, a machine without a GPU would predict times.
    options.measures = "" if given & _DEVICES else "genkern measure"
    options.command = shlex.join(["python", "-m", "genkern", "measure", *argv])
    return options


def measure_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern measure",
        usage="genkern measure FOLDER [options of tuning]",
        description="Tune the sizes of a folder of `genkern compile` with its kernels. Options of tuning may follow.",
    )
    group = p.add_argument_group("what to measure")
    group.add_argument("folder", metavar="FOLDER", help="the folder, whose checksums are verified")
    group.add_argument("--shard", type=read_shard, metavar="I/N", help=SHARD_HELP)
    group.add_argument(
        "--may_compile", "--may-compile", action="store_true", help="compile further kernels that the search wants"
    )
    group.add_argument("-o", "--output", metavar="FILE", help="the results (default: in FOLDER/results)")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_measure(options: argparse.Namespace, console: Console) -> int:
    """Tune; returns the exit status of `run`."""
    from genkern.cli.run import run

    return run(options, console)
