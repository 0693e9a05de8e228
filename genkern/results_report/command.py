"""`genkern report`: a report of results files, as a page, Markdown or a picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console

from genkern.arguments import Parser, underscored
from genkern.errors import InputError
from genkern.file_io import is_stream, shown_path
from genkern.results_report.candidates import MOST_CANDIDATES
from genkern.results_report.writing import FORMATS, format_of, write

_DEFAULT_NAME = "report"


def parse_report(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern report`. Raises InputError; SystemExit(0) after printing for --help."""
    p = report_parser()
    options = p.parse_args(underscored(argv, p))
    if options.output is None:
        options.output = f"{_DEFAULT_NAME}.{options.format or FORMATS[0]}"
    options.format = format_of(options.output, options.format)
    if options.most_candidates < 0:
        raise InputError("--most_candidates: give a number from 0 on")
    return options


def report_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern report",
        description="Write a report of results: speed over the library, roofline, candidates, generated sources, cost\n"
        "of the run, and changes against older results. The HTML page is one file and loads nothing.",
    )
    group = p.add_argument_group("what to report, and where")
    group.add_argument(
        "results", metavar="RESULTS", help="a results file, or a folder of results files; journals beside them are read"
    )
    group.add_argument("old", nargs="?", metavar="OLD", help="older results of the same sizes, to compare with")
    group.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write (default: report.html, or the suffix of --format)"
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="html (page), md (for a pull request), png or svg (for slides), json (the data); default: by the suffix",
    )
    group.add_argument(
        "--candidates",
        action="append",
        default=[],
        metavar="FILE",
        help="candidates of sizes without a journal: the CSV of --profile_file, or recorded tables; may be repeated",
    )
    group.add_argument(
        "--most_candidates",
        type=int,
        default=MOST_CANDIDATES,
        metavar="N",
        help=f"candidates to show one by one, fastest first, in all (default: {MOST_CANDIDATES})",
    )
    group.add_argument("--title", default="", metavar="TEXT", help="a title instead of the devices and number of sizes")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_report(options: argparse.Namespace, console: Console) -> int:
    """Write the report, and print its notes. Raises ResultsError, InputError or OutputError."""
    record = write(
        options.results,
        options.output,
        options.old,
        options.format,
        candidates=options.candidates,
        title=options.title,
        most_candidates=options.most_candidates,
    )
    for note in record.notes:
        console.print(f"note: {note}")
    if not is_stream(options.output):
        sizes = f"{len(record.sizes)} size{'s' * (len(record.sizes) != 1)}"
        console.print(f"{sizes}, {options.format}: {shown_path(options.output)}")
    return 0
