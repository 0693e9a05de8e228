"""`genkern import`: converts configs and sizes of other programs' files to results or sizes to tune."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser, underscored
from genkern.errors import InputError
from genkern.file_io import require_writable, shown_path, write_whole
from genkern.files.exchange.peers import PEERS, read_peer
from genkern.files.file_kind import require_no_times
from genkern.files.peer_config import Candidate, UnknownDevice
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.config import Config
from genkern.gemm.gpus import known_archs
from genkern.gemm.problem import GemmProblem


def parse_import(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern import`. Raises InputError; SystemExit(0) after printing for --help."""
    p = import_parser()
    options = p.parse_args(underscored(argv, p))
    if options.output.lower().endswith(".csv"):
        raise InputError(f"-o {options.output}: AITER's CSV cannot hold these: name a YAML file")
    return options


def import_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern import",
        description="Convert other programs' configs to results without times, which take part when their sizes\n"
        "are tuned: genkern -i RESULTS -o RESULTS --all. Files without configs become a list of sizes.",
    )
    group = p.add_argument_group("what to read")
    group.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="JSON of vLLM, SGLang or AITER's Triton kernels, AITER's fused MoE tables, TunableOp's CSV, by their "
        "names; or a folder, for all such files in it and in its subfolders",
    )
    group.add_argument("-o", "--output", metavar="FILE", required=True, help="the results, or sizes, to write, in YAML")
    group.add_argument(
        "--arch",
        choices=known_archs(),
        metavar="ARCH",
        help="the architecture to tune them for (default: that of the device in the files' names)",
    )
    group.add_argument("--overwrite", action="store_true", help="replace an existing file, unless it has times")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_import(options: argparse.Namespace, console: Console) -> int:
    """Convert the files; print the number of converted sizes, and the sizes that were left out.

    If one of several files cannot be read, it is left out and the return value is 1. Raises InputError or OutputError.
    """
    require_no_times(options.output, options.overwrite)
    require_writable(options.output)
    taken: dict[tuple[GemmProblem, str], Config | None] = {}
    left_out: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    files, status = list(_files(options.files)), 0
    for path in files:
        try:
            imported = read_peer(path, options.arch)
        except UnknownDevice:
            if len(files) == 1:
                raise
            left_out["files of GPUs that genkern does not know: give the architecture with --arch"] += 1
            continue
        except InputError as error:
            if len(files) == 1:
                raise
            console.print(f"left out: {error}")
            status = 1
            continue
        left_out += imported.left_out
        notes += imported.notes
        for candidate in imported.candidates:
            _add(taken, candidate, imported.arch, left_out)
    for reason, count in left_out.items():
        console.print(f"left out: {count} {reason}")
    for note, count in notes.items():
        console.print(f"note: {count} {note}")
    if not taken:
        raise InputError(f"nothing to import from {_counted(files)}: no config or size that genkern has")
    with_config = sum(config is not None for config in taken.values())
    if 0 < with_config < len(taken):
        raise InputError("some of these files have configs and others sizes alone; import them into files of their own")
    entries = sorted(taken.items(), key=lambda entry: (_order(entry[0][0]), entry[0][1]))
    write_whole(options.output, "".join(size_line(problem, config, arch) for (problem, arch), config in entries))
    what = f"{len(taken)} sizes, " + ("each with a config" if with_config else "without configs")
    console.print(f"{what}, of {_counted(files)}, are in {shown_path(options.output)}")
    return status


def _counted(files: Sequence[str]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"


def _add(
    taken: dict[tuple[GemmProblem, str], Config | None], candidate: Candidate, arch: str, left_out: Counter[str]
) -> None:
    """Add a candidate, unless its size and architecture have another config: results have one config per size."""
    config = candidate.config
    if taken.setdefault((candidate.problem, arch if config else ""), config) != config:
        left_out["configs of a size that already has another one: import them into a file of their own"] += 1


def _files(named: Sequence[str]) -> Iterator[str]:
    """Yield the files; for a folder, the files in and below it whose name is of a known kind. Raises InputError."""
    for path in named:
        if not Path(path).is_dir():
            yield path
            continue
        inside = (file for file in sorted(Path(path).rglob("*")) if file.is_file())
        found = [str(file) for file in inside if any(peer.is_named(file.name) for peer in PEERS.values())]
        if not found:
            raise InputError(f"{shown_path(path)}: no file in this folder has the name of a known kind; name files")
        yield from found


def _order(problem: GemmProblem) -> tuple[object, ...]:
    """Return the sort key that groups problems by weight, in ascending order of M."""
    return problem.op, problem.dtype_a, problem.N, problem.K, problem.M, problem
