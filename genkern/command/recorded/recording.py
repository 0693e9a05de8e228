"""`genkern record`: stores what runs measured, config by config, as tables that other programs can read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.errors import OutputError, ResultsError
from genkern.files import shown_path
from genkern.journal.facts import JournalFacts, read_journal
from genkern.journal.run_files import RunFiles, find_runs
from genkern.recorded.making import RecordedRun, run_of
from genkern.recorded.parquet import SUFFIX, add, arrow, place_of

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def parse_record(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern record`. Raises InputError; SystemExit(0) after printing for --help."""
    return record_parser().parse_args(argv)


def record_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern record",
        description="Store the measurements of runs, config by config, in parquet files. A run that is already in a "
        "file is replaced there; other runs stay.",
    )
    group = p.add_argument_group("what to record, and where")
    group.add_argument(
        "runs", nargs="+", metavar="RUN", help="a results file, its journal, or a folder of results files"
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


def run_record(options: argparse.Namespace, console: Console) -> int:
    """Add the runs to their files, and print a line for each. Raises ResultsError, OutputError or InputError."""
    arrow()
    output: str = options.output
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
