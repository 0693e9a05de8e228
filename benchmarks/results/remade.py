"""Remade: what was tuned anew so far, in a folder of its own until a shipped file can be written whole.

The folder has for each commit of genkern the results of its runs (COMMIT.yaml) with their journals (those of runs that
ended, or were set aside, as COMMIT_1 and so on), and runs.csv, a line for each run. A kill at any time leaves what
genkern's own runs leave, from which they go on.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import InputError, ResultsError
from genkern.file_io import read_text, write_whole
from genkern.files.file_kind import kind_of, read_results
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.journal.run_files import RunFiles
from genkern.result.result import Result

COMMIT = re.compile(r"[0-9a-f]{7,40}")
_NAME = re.compile(r"([0-9a-f]{7})(?:_([0-9]{1,6}))?\.yaml")
_RUN_COLUMNS = "commit", "date", "command"


@dataclass(frozen=True)
class Line:
    """A row of results as `file` has it, with the commit of genkern that made it and the day of its last run."""

    row: Result
    text: str
    head: str
    file: Path
    commit: str
    date: str


class Remade:
    """The folder; `commit` is that of the genkern that runs. Raises InputError for a commit that is none."""

    def __init__(self, folder: Path, commit: str) -> None:
        if not COMMIT.fullmatch(commit):
            raise InputError(f"--commit {commit[:50]}: not a commit, 7 to 40 hexadecimal digits")
        self.folder = folder
        self.commit = commit[:7]
        self.results = folder / f"{self.commit}.yaml"
        self.sizes = folder / "sizes" / f"{self.commit}.yaml"

    def lines(self, device: str) -> dict[GemmProblem, Line]:
        """The rows of `device` by size: this commit's where it has one, else that of the commit that ran last.

        Raises ResultsError for a file that is damaged.
        """
        dates = {run["commit"]: run["date"] for run in self._runs()}
        order = {commit: place for place, commit in enumerate((*(c for c in dates if c != self.commit), self.commit))}
        # Of one commit what was set aside comes first.
        paths = {(order.get(match[1], -1), int(match[2] or "1000000")): path for match, path in self._files()}
        found: dict[GemmProblem, Line] = {}
        for _, path in sorted(paths.items()):
            commit = path.stem.partition("_")[0]
            found |= {line.row.problem: line for line in lines_of(path, device, commit, dates.get(commit, ""))}
        return found

    def _files(self) -> Iterator[tuple[re.Match[str], Path]]:
        for path in self.folder.glob("*.yaml"):
            if match := _NAME.fullmatch(path.name):
                yield match, path

    def start(self, problems: Sequence[GemmProblem], command: str) -> None:
        """Write down that a run begins, and its list of sizes."""
        self.sizes.parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(self.sizes), "".join(map(size_line, problems)))
        runs = [*self._runs(), dict(zip(_RUN_COLUMNS, (self.commit, time.strftime("%Y-%m-%d"), command), strict=True))]
        write_whole(str(self.folder / "runs.csv"), as_csv(_RUN_COLUMNS, runs))
        # A run that comes to its end replaces the journal of the one before, which `genkern record` is to read too.
        finished = RunFiles(str(self.results)).finished_journal
        if finished.exists():
            finished.rename(self._aside().finished_journal)

    def set_aside(self) -> None:
        """Have the next run of this commit begin anew: what the one before has finished stays, and counts."""
        here, aside = RunFiles(str(self.results)), self._aside()
        for path, renamed in (
            (self.results, aside.results),
            (here.journal, aside.journal),
            (here.finished_journal, aside.finished_journal),
        ):
            with contextlib.suppress(FileNotFoundError):
                path.rename(renamed)

    def _aside(self) -> RunFiles:
        numbered = (RunFiles(str(self.folder / f"{self.commit}_{n}.yaml")) for n in itertools.count(1))
        return next(run for run in numbered if not (run.known or Path(run.results).exists()))

    def _runs(self) -> list[dict[str, str]]:
        """Each run, in the order in which commits ran last."""
        path = self.folder / "runs.csv"
        with contextlib.suppress(FileNotFoundError):
            runs = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
            last = {run["commit"]: place for place, run in enumerate(runs)}
            return sorted(runs, key=lambda run: last[run["commit"]])
        return []


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """A CSV file with these columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def lines_of(path: Path, device: str, commit: str, date: str) -> Iterator[Line]:
    """The measured rows of `device` that a results file has. Raises ResultsError for a damaged one."""
    text = read_text(str(path), ResultsError)
    rows = list(read_results(str(path)))
    head, texts = kind_of(str(path)).split(text, str(path), [row.line for row in rows])
    for row, row_text in zip(rows, texts, strict=True):
        if row.device == device and row.measured:
            yield Line(row, row_text, head, path, commit, date)
