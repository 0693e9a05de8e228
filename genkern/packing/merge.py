"""`genkern merge`: joins recorded sizes and other size lists into one list without duplicates."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.errors import InputError
from genkern.file_io import read_text, require_writable, shown_path, write_whole
from genkern.files.file_kind import LIST_HELP, list_text, require_list_or_none
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import SizeList, parse_sizes
from genkern.gemm.gpus import known_archs
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_names
from genkern.runtime.process.size_recorder import PREFIX, PREFIXES


def parse_merge(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern merge`. Raises InputError; SystemExit(0) after printing for --help."""
    return merge_parser().parse_args(argv)


def merge_parser() -> Parser:
    """Return the parser of `genkern merge`, whose help is the reference of the command."""
    p = Parser(
        prog="genkern merge",
        description="Join size lists, such as recorded ones (GENKERN_TUNE_GEMM=1), into one list without duplicates.",
    )
    group = p.add_argument_group("what to join")
    group.add_argument(
        "sizes",
        nargs="+",
        metavar="SIZES",
        help=f"lists as --gemm_size_file takes them; a folder means the recorded lists in it ({PREFIX}*.yaml)",
    )
    group.add_argument("-o", "--output", metavar="FILE", required=True, help=LIST_HELP)
    group.add_argument("--overwrite", action="store_true", help="replace an existing list; never a results file")
    group.add_argument(
        "--op", choices=op_names(), metavar="OP", help="only sizes of this format: AITER has a list each"
    )
    group.add_argument("--arch", choices=known_archs(), metavar="ARCH", help="for sizes that do not name their types")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_merge(options: argparse.Namespace, console: Console) -> int:
    """Join the lists, and print what each contributed; return 1 if something was left out.

    Raises InputError or OutputError.
    """
    require_list_or_none(options.output, options.overwrite)
    require_writable(options.output)
    found: dict[GemmProblem, None] = {}
    entries = files = cut = 0
    unread: list[InputError] = []
    for path in recorded_files(options.sizes):
        files += 1
        try:
            sizes, is_cut = read_list(path, options.arch)
        except InputError as error:
            console.print(f"left out: {error}")
            unread.append(error)
            continue
        cut += is_cut
        notes = [*(["its last line, which is incomplete, is left out"] if is_cut else []), *sizes.notes]
        new = [problem for problem in sizes.problems if problem not in found]
        entries += len(sizes.problems)
        found.update(dict.fromkeys(new))
        told = "".join(f"; {note}" for note in notes)
        console.print(f"{shown_path(path)}: {len(sizes.problems)} sizes, {len(new)} of them new{told}")
    if not found:
        why = f"{unread[0]}" if unread else f"no sizes in {files} files"
        raise InputError(f"nothing to join: {why}")
    if options.op:
        others = Counter(problem.op for problem in found if problem.op != options.op)
        for op, count in others.items():
            console.print(f"left out: {count} sizes of {op}")
        found = {problem: None for problem in found if problem.op == options.op}
        if not found:
            raise InputError(f"nothing to join: no size is of {options.op}")
    write_whole(options.output, list_text(sorted(found, key=_order), options.output))
    console.print(
        f"{len(found)} sizes, of {entries} in {files - len(unread)} files, are in {shown_path(options.output)}"
    )
    return 1 if unread or cut else 0


def recorded_files(named: Sequence[str]) -> Iterator[str]:
    """Yield the named lists, and the recorded lists in named folders. Raise InputError for a folder without any."""
    for path in named:
        if not os.path.isdir(path):
            yield path
            continue
        recorded = sorted(str(found) for prefix in PREFIXES for found in Path(path).glob(f"{prefix}*.yaml"))
        if not recorded:
            raise InputError(f"{shown_path(path)}: no recorded sizes ({PREFIX}*.yaml) are in this folder; name files")
        yield from recorded


def read_list(path: str, arch: str | None) -> tuple[SizeList, bool]:
    """Return a file's sizes, and True if its last line was dropped: a full disk may have cut it.

    Raises InputError.
    """
    text = read_text(path)
    try:
        return parse_sizes(text, path, GemmDefaults(), arch), False
    except InputError:
        whole = text[: text.rfind("\n") + 1]
        if whole == text or not whole.strip() or path.lower().endswith(".csv"):
            raise
    return parse_sizes(whole, path, GemmDefaults(), arch), True


def _order(problem: GemmProblem) -> tuple[object, ...]:
    """Return the sort key that groups problems by weight, in ascending order of M."""
    return problem.op, problem.dtype_a, problem.N, problem.K, problem.M, problem
