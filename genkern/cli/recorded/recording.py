"""`genkern record`: stores what runs measured, config by config, as tables, or as files of Kernel Tuner."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.errors import InputError, OutputError, ResultsError
from genkern.file_io import shown_path, write_whole
from genkern.journal.facts import JournalFacts, read_journal
from genkern.journal.run_files import RunFiles, find_runs
from genkern.recorded import t4
from genkern.recorded.from_journal import RecordedRun, run_of
from genkern.recorded.load import provenance_of, recorded_problems
from genkern.recorded.parquet import SUFFIX, add, arrow, place_of

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SIZE = re.compile(r"[0-9]{1,10}x[0-9]{1,10}x[0-9]{1,10}")


def parse_record(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern record`. Raises InputError; SystemExit(0) after printing for --help."""
    return record_parser().parse_args(argv)


def record_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern record",
        description="Store the measurements of runs, config by config, in parquet files. A run that is already in a "
        "file is replaced there; other runs stay. With --to, write recorded tables as files of another program.",
    )
    group = p.add_argument_group("what to record, and where")
    group.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a results file, its journal, or a folder of results files; with --to also a recorded table, or a folder "
        "of tables",
    )
    group.add_argument(
        "--to",
        choices=(t4.NAME,),
        metavar="KIND",
        help=f"{t4.NAME}: Kernel Tuner's T4 results and T1 spaces, and caches for its simulation mode, in a folder for "
        "each GPU and problem; files of an earlier export are replaced",
    )
    group.add_argument(
        "--size",
        action="append",
        type=_size,
        metavar="MxNxK",
        help="with --to: only problems of this size, may be repeated (default: all)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="PLACE",
        required=True,
        help=f"a folder, in which each run has a file of its own, or one file ({SUFFIX})",
    )
    group.add_argument(
        "--commit", type=_commit, metavar="HASH", help="the commit of genkern that measured, which the file records"
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def _commit(text: str) -> str:
    if not _COMMIT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:50]!r} is not a commit: 7 to 40 hexadecimal digits")
    return text


def _size(text: str) -> tuple[int, ...]:
    if not _SIZE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:50]!r} is not a size: MxNxK, such as 16x4096x7168")
    return tuple(map(int, text.split("x")))


def run_record(options: argparse.Namespace, console: Console) -> int:
    """Add the runs to their files, and print a line for each. Raises ResultsError, OutputError or InputError."""
    output: str = options.output
    if options.to:
        if options.commit:
            raise InputError("--commit: recorded tables have the commit of each run: give it without --to")
        return _write_t4(options.runs, options.size, output, console)
    if options.size:
        raise InputError("--size: only files of another program are written for some sizes: give --to too")
    arrow()
    if not output.endswith(SUFFIX) and Path(output).is_file():
        raise OutputError(f"-o {shown_path(output)} is a file: name a folder, or a file that ends in {SUFFIX}")
    # All journals are read before anything is written.
    journals = [found for path in options.runs for found in _journals(path)]
    found = [(stem, run_of(journal, options.commit or "")) for stem, journal in journals]
    for stem, run in found:
        place = place_of(run, stem, output)
        written = add(run, place)
        console.print(f"{shown_path(place)}: {_said(run)}, {written / 1e6:.2f} MB")
    return 0


def _write_t4(paths: Sequence[str], sizes: Sequence[tuple[int, ...]] | None, output: str, console: Console) -> int:
    """Write Kernel Tuner's files of the wholly recorded problems, and print a line for each path."""
    if os.path.lexists(output) and not Path(output).is_dir():
        raise OutputError(f"-o {shown_path(output)} is a file: --to {t4.NAME} writes into a folder; name one")
    written = 0
    for path in paths:
        provenance = provenance_of(path)
        problems = files = configs = in_part = 0
        for recorded in recorded_problems(path):
            if sizes and (recorded.problem.M, recorded.problem.N, recorded.problem.K) not in sizes:
                continue
            if not recorded.whole:
                in_part += 1
                continue
            problems, configs = problems + 1, configs + len(recorded.configs)
            for name, text in t4.files_of(recorded, provenance[recorded.run]):
                write_whole(os.path.join(output, name), text)
                files += name.endswith(t4.RESULTS_END)
        written += problems
        left_out = f"; left out: {in_part} that were measured in part" if in_part else ""
        console.print(
            f"{shown_path(path)}: {problems} problem{'s' * (problems != 1)} in {files} spaces, {configs:,} configs, "
            f"in {shown_path(output)}{left_out}"
        )
    if not written:
        of_sizes = " of these sizes" if sizes else ""
        raise ResultsError(f"nothing to write: no problem{of_sizes} was measured whole, as --exhaustive does")
    return 0


def _journals(path: str) -> list[tuple[str, JournalFacts]]:
    """Return the journals of a path, each with the stem of its run's files."""
    runs = find_runs(path)
    exact = Path(path).is_file() and path != runs[0].results
    return [(Path(run.results).stem, _read(Path(path) if exact else None, run)) for run in runs]


def _read(named: Path | None, run: RunFiles) -> JournalFacts:
    for journal in (named,) if named else (run.journal, run.finished_journal):
        try:
            return read_journal(journal)
        except FileNotFoundError:
            continue
    raise ResultsError(f"{shown_path(run.results)}: nothing is recorded of this run yet")


def _said(run: RecordedRun) -> str:
    rows = sum(problem.count for problem in run.problems)
    partly = sum(not problem.whole for problem in run.problems)
    some = f", {partly} of them in part" if partly else ""
    sizes = f"{len(run.problems)} size{'s' * (len(run.problems) > 1)}"
    return f"run {run.name} on {run.provenance['device']}, {sizes}{some}, {rows:,} rows"
