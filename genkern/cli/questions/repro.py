"""`genkern repro`: writes a script that runs one result without genkern, to attach to an issue."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from rich.console import Console

from genkern.arguments import Parser, underscored
from genkern.cli.questions.against import read_config
from genkern.cli.questions.named_row import (
    WHAT_HELP,
    FoundRow,
    Place,
    add_filters,
    on_this_gpu,
    read_what,
    require_one,
    rows_at,
    rows_of,
    shipped_files,
    usual_paths,
)
from genkern.cli.questions.repro_script import kernel_script, library_script
from genkern.errors import InputError
from genkern.file_io import is_stream, require_absent, require_writable, shown_path, write_whole
from genkern.gemm.gpus import NOT_PRESENT, Gpu, gpu_for_arch, gpu_for_device
from genkern.gemm.records import CONFIG_WINS
from genkern.kernels.legality import legal
from genkern.runtime.bundles.bundle import is_bundle
from genkern.screen import put
from genkern.timing.libraries import TORCH


def parse_repro(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern repro`. Raises InputError; SystemExit(0) after printing for --help."""
    p = repro_parser()
    options = p.parse_args(underscored(argv, p))
    options.what = read_what(options.what)
    if isinstance(options.what, Place) and options.results:
        raise InputError("a row's place names its file: leave out --results")
    return options


def repro_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern repro",
        description="Write a script that runs a row of results: kernel, launch, inputs from a seed, check and timing.\n"
        "It needs PyTorch and Triton, not genkern. Attach it to an issue of Triton's or cuBLAS's.",
    )
    group = p.add_argument_group("which result")
    group.add_argument("what", metavar="ROW|SIZE", help=WHAT_HELP)
    group.add_argument(
        "--results", nargs="+", default=[], metavar="FILE", help="results files with the size (default: as genkern why)"
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument("--config", metavar="NAME", help="another config than the row's")
    which.add_argument("--library", action="store_true", help="the library's best call instead of the row's config")
    which.add_argument("--torch", action="store_true", help="PyTorch's own call instead of the row's config")
    add_filters(group)
    output = p.add_argument_group("what to write")
    output.add_argument(
        "-o", "--output", default="repro.py", metavar="FILE", help="the script, or - for stdout (default: repro.py)"
    )
    output.add_argument("--overwrite", action="store_true", help="replace an existing file")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_repro(options: argparse.Namespace, console: Console) -> int:
    """Write the script. Raises InputError or ResultsError if there is not exactly one row, or it has no script."""
    path = "/dev/stdout" if options.output == "-" else options.output
    if not is_stream(path):
        require_absent(path, options.overwrite)
        require_writable(path)
    found = _row(options)
    row, gpu = found.row, gpu_of_row(found, options.arch)
    name = os.path.basename(path) if not is_stream(path) else "repro.py"
    if options.torch or options.library or (row.config is None and not options.config):
        called = TORCH if options.torch or not row.vendor else row.vendor
        text = library_script(row, called, gpu, found.place, name)
    else:
        config = read_config(options.config) if options.config else row.config
        assert config is not None
        called = config.name
        if why := legal(row.problem, config, gpu):
            raise InputError(f"{config.name} cannot compute {row.problem.size} on {gpu.name}: {why}")
        text = kernel_script(row, config, gpu, found.place, name)
    write_whole(path, text)
    if is_stream(path):
        return 0
    lines = [f"{shown_path(path)}: {found.text}: {called}"]
    if row.choice != CONFIG_WINS and called == (row.config.name if row.config else ""):
        lines.append("note: for this row the library is called: --library writes that call")
    lines.append(f"next: python {shown_path(path)} on that GPU, with PyTorch and Triton installed")
    put(console, "repro", {"file": path, "row": found.place, "called": called, "gpu": gpu.name}, lines)
    return 0


def _row(options: argparse.Namespace) -> FoundRow:
    if isinstance(options.what, Place):
        return rows_at(options.what)[0]
    # A bundle has no configs to generate from, only their binaries.
    files = options.results or [path for path in usual_paths() if not is_bundle(path)] or shipped_files()
    rows = rows_of(options.what, files, options)
    return require_one(on_this_gpu(rows), str(options.what))


def gpu_of_row(found: FoundRow, arch: str | None) -> Gpu:
    """Return the GPU that a row was tuned on. Raises InputError if neither the row nor --arch names one."""
    row = found.row
    if not row.arch and arch is None:
        raise InputError(f"{found.place} does not name its GPU: give --arch")
    if not row.arch or not row.device:
        return gpu_for_arch(str(row.arch or arch))
    return gpu_for_device(row.device.removesuffix(NOT_PRESENT), row.arch)
