"""`genkern collect`: joins the results of several jobs into one file, with a comment on the origin above each row."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import operator
import os
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.cluster.work_folder import WorkFolder
from genkern.errors import InputError, OutputError, ResultsError
from genkern.file_io import read_text, require_absent, require_writable, shown_path, write_whole
from genkern.files import tune_gemm_yaml
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import read_ends
from genkern.journal.run_files import RunFiles
from genkern.packing.rows import rank_of
from genkern.result.result import Result
from genkern.timing.trust_rank import TrustRank

# Sort key with the order of GemmProblem's own comparison, in a tenth of the time.
_in_order = operator.attrgetter(*(field.name for field in fields(GemmProblem)))
_ORIGIN = re.compile(r"# from [^\n]*\n")


@dataclass(frozen=True, slots=True)
class CollectedRow:
    """A row of a results file, reduced to the fields that joining needs: 100,000 complete rows would take 200 MB.

    problem, device: the row's problem and device
    key: problem, device, library and layout of the weight; the joined file has one row per key
    rank: of rows with equal keys, the row with the smallest rank is kept
    text: the row's text
    origin: the comment above it, which says where it comes from
    """

    problem: GemmProblem
    device: str | None
    key: Hashable
    rank: tuple[TrustRank, float]
    text: str
    origin: str

    @classmethod
    def of(cls, row: Result, text: str, origin: str) -> CollectedRow:
        key = row.problem, row.arch, row.device, row.compute_units, row.library, row.bpreshuffle
        return cls(row.problem, row.device, key, rank_of(row), text, origin)

    @property
    def duration_us(self) -> float:
        """The time of the row's config in microseconds; infinite if the row has none."""
        return self.rank[1]


def parse_collect(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern collect`. Raises InputError; SystemExit(0) after printing for --help."""
    options = collect_parser().parse_args(argv)
    if not options.output.lower().endswith((".yaml", ".yml")):
        raise InputError(f"-o {options.output}: name a YAML file, which can store the origin of rows")
    return options


def collect_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern collect",
        description="Join results: keep the best row per size and device, with a comment about its origin above.",
    )
    group = p.add_argument_group("what to join")
    group.add_argument(
        "results",
        nargs="+",
        metavar="RESULTS",
        help="results in YAML, or a folder of `genkern compile` for the results in it",
    )
    group.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write, in YAML")
    group.add_argument("--overwrite", action="store_true", help="replace existing results, but no other file")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_collect(options: argparse.Namespace, console: Console) -> int:
    """Join results, and print what is missing; returns 1 if sizes of a folder have no result yet.

    Raises InputError, ResultsError or OutputError.
    """
    _require_results_or_none(options.output, options.overwrite)
    require_writable(options.output)
    best: dict[Hashable, CollectedRow] = {}
    files = rows = 0
    wanted: set[GemmProblem] = set()
    for named in options.results:
        paths = [named]
        if (folder := WorkFolder(Path(named))).path.is_dir():
            arch = folder.manifest().arch
            wanted.update(read_sizes(str(folder.sizes), GemmDefaults(), arch).problems)
            paths = sorted(map(str, folder.results.glob("*.yaml")))
        for path in paths:
            files += 1
            for row in rows_in(path):
                rows += 1
                if row.key not in best or row.rank < best[row.key].rank:
                    best[row.key] = row
    if not best:
        raise InputError(
            f"nothing to join: no results in {files} files (genkern measure FOLDER writes results into a folder)"
        )
    kept = write_rows(options.output, best.values())
    doubles = (
        f"; {rows - len(kept)} further rows of the same sizes and devices are left out" if rows > len(kept) else ""
    )
    console.print(f"{len(kept)} rows of {files} files are in {shown_path(options.output)}{doubles}")
    if missing := wanted - {each.problem for each in kept}:
        console.print(f"note: {len(missing)} of {len(wanted)} sizes have no result yet")
    return 1 if missing else 0


def _require_results_or_none(path: str, overwrite: bool) -> None:
    """Raise OutputError if a file other than results would be replaced, or any file without `overwrite`."""
    require_absent(path, overwrite)
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            # The first row shows whether it is a results file.
            next(tune_gemm_yaml.read_rows(read_text(path, ResultsError), shown_path(path), GemmDefaults()), None)
        except ResultsError:
            said = f"{shown_path(path)} is not a results file; --overwrite replaces only such files; name another -o"
            raise OutputError(said) from None


def write_rows(path: str, rows: Iterable[CollectedRow]) -> list[CollectedRow]:
    """Write these rows to a results file, sorted by size, and return them in that order. Raises OutputError."""
    kept = sorted(rows, key=lambda each: _in_order(each.problem))
    head, _ = tune_gemm_yaml.render((), 0, "")
    write_whole(path, itertools.chain([head], (each.origin + each.text for each in kept)))
    return kept


def rows_in(path: str) -> list[CollectedRow]:
    """Return the rows of a results file; rows that were joined before keep their origin. Raises ResultsError."""
    return rows_of(read_text(path, ResultsError), shown_path(path), f"{Path(path).name!r}{_hosts(path)}")


def rows_of(text: str, where: str, origin: str) -> list[CollectedRow]:
    """Return the rows in the text of a results file; rows without an origin get `origin`, which is one line."""
    read = tune_gemm_yaml.read_rows(text, where, GemmDefaults())
    found = [(row.line, CollectedRow.of(row, "", f"# from {origin}\n")) for row in read]
    lines = [line for line, _ in found]
    above, texts = tune_gemm_yaml.split(text if text.endswith("\n") else text + "\n", where, lines)
    rows = []
    for (_, row), own in zip(found, texts, strict=True):
        # The comment above a row is at the end of the preceding text.
        said = _ORIGIN.findall(above)
        first, *more = own.splitlines(keepends=True)
        rows.append(replace(row, text=first if more else own, origin=said[-1] if said else row.origin))
        above = "".join(more)
    return rows


def _hosts(results: str) -> str:
    """Return the hosts on which a run wrote a results file, from its journal; "" without one."""
    files = RunFiles(results)
    hosts: dict[str, None] = {}
    for journal in (files.finished_journal, files.journal):
        with contextlib.suppress(ResultsError, FileNotFoundError):
            hosts |= {start.host: None for start in read_ends(journal).starts}
    return f" on {', '.join(map(repr, hosts))}" if hosts else ""
