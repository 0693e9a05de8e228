"""`genkern ops`: a table of formats and architectures, with the number of measured sizes in results."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from rich.console import Console

import genkern
from genkern.arguments import Parser, underscored
from genkern.errors import InputError, ResultsError
from genkern.file_io import shown_path
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.gpus import archs_for_spaces, gpu_for_arch, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_folder, op_names
from genkern.screen import is_json, put_table
from genkern.space.space import SHIPPED_SPACES, Space, read_space, shipped_names

# The results folder of a checkout. An installed genkern has the counts instead (results/measured.py).
RESULTS = Path(genkern.__file__).resolve().parent.parent / "results"
SHIPPED = Path(__file__).with_name("measured.yaml")
# Architectures in one table.
_MOST_ARCHS = 6
# A size that every format accepts.
_SIZE = {"M": 1024, "N": 1024, "K": 1024}


def parse_ops(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern ops`. Raises InputError; SystemExit(0) after printing for --help."""
    p = ops_parser()
    return p.parse_args(underscored(argv, p))


def ops_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern ops",
        description="Show for each format and target whether it was measured (with the number of sizes in results),\n"
        "can be compiled (there is a space to search, and the target takes the format), or is not available (-).",
    )
    group = p.add_argument_group("by which results")
    group.add_argument(
        "results",
        nargs="*",
        metavar="RESULTS",
        help="results files, or folders of results files (default: those that genkern was released with)",
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_ops(options: argparse.Namespace, console: Console) -> int:
    """Print the table. Raises ResultsError if a named file is not a results file."""
    if not options.results and not RESULTS.is_dir():
        counts, passed_over = shipped_counts(), 0
    else:
        measured, passed_over = measured_sizes(options.results or [str(RESULTS)])
        counts = {key: len(problems) for key, problems in measured.items()}
    spaces = {op: searched_archs(op) for op in op_names()}
    by_vendor: dict[str, list[str]] = {}
    for arch in known_archs():
        by_vendor.setdefault(gpu_for_arch(arch).vendor, []).append(arch)
    # Several tables: one for all architectures would be wider than a terminal.
    tables = [archs[at : at + _MOST_ARCHS] for archs in by_vendor.values() for at in range(0, len(archs), _MOST_ARCHS)]
    for number, archs in enumerate(tables):
        rows = [["format", *archs]]
        for op in op_names():
            states = (
                state(op, arch, not spaces[op].isdisjoint(archs_for_spaces(arch)), counts.get((op, arch), 0))
                for arch in archs
            )
            rows.append([op, *states])
        if number and not is_json(console):
            console.print()
        put_table(console, "format", rows)
    if passed_over:
        console.print(f"note: {passed_over} other files in these folders are not results")
    return 0


def shipped_counts() -> dict[tuple[str, str], int]:
    """Return the number of sizes in the results that genkern was released with, by format and architecture."""
    found = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    return {(op, arch): count for op, archs in found.items() for arch, count in archs.items()}


def measured_sizes(named: Sequence[str]) -> tuple[dict[tuple[str, str], set[GemmProblem]], int]:
    """Return the measured sizes by format and architecture, and the number of files in folders that are not results.

    Raises ResultsError if a file that is named itself is not a results file.
    """
    found: dict[tuple[str, str], set[GemmProblem]] = {}
    passed_over = 0
    for path, is_named in _files(named):
        try:
            rows = read_results(path)
        except ResultsError:
            if is_named:
                raise
            passed_over += 1
            continue
        for row in rows:
            if row.arch and row.measured and row.is_genkerns:
                found.setdefault((row.problem.op, row.arch), set()).add(row.problem)
    return found, passed_over


def searched_archs(op: str) -> frozenset[str]:
    """Return the architectures for which a format has a default space: its own, or one for several formats."""
    own = [read_space(file) for file in op_folder(op).glob("*.yaml")]
    spaces = [space for space in (*own, *_default_spaces()) if op in space.ops]
    return frozenset(arch for space in spaces for arch in space.archs)


@functools.cache
def _default_spaces() -> tuple[Space, ...]:
    spaces = (read_space(SHIPPED_SPACES / f"{name}.yaml") for name in shipped_names())
    return tuple(space for space in spaces if space.default)


def state(op: str, arch: str, is_searched: bool, measured: int) -> str:
    """Return `measured 36`, `compiled`, or `-` if the target does not take the format or there is no space for it."""
    if measured:
        return f"measured {measured}"
    if not is_searched:
        return "-"
    try:
        resolve({**_SIZE, "op": op}, GemmDefaults(), arch)
    except InputError:
        return "-"
    return "compiled"


def _files(named: Sequence[str]) -> Iterator[tuple[str, bool]]:
    for path in named:
        if not Path(path).is_dir():
            yield path, True
            continue
        inside = sorted(file for suffix in ("yaml", "csv") for file in Path(path).rglob(f"*.{suffix}"))
        if not inside:
            raise ResultsError(f"{shown_path(path)}: no results (*.yaml, *.csv) are in this folder; name files")
        yield from ((str(file), False) for file in inside)
