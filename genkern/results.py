"""ResultsFile: the winners so far in a file that others read, rewritten whole after every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import ResultsError
from genkern.files import read_text, write_whole
from genkern.flat_yaml import read_entries
from genkern.formats import aiter_csv, tune_gemm_yaml
from genkern.formats.tuned_row import TunedRow
from genkern.gemm_entry import GemmDefaults
from genkern.problem import GemmProblem
from genkern.records import Winner

# Rows that differ here were tuned for something else; a new device or driver is said in the file only.
_VERSIONS_THAT_MATTER = ("triton",)


@dataclass(frozen=True)
class _Kept:
    """An entry that was in the file before, kept to the letter."""

    problem: GemmProblem
    text: str


class ResultsFile:
    """One results file, YAML (tune_gemm's) or CSV (AITER's) by its suffix.

    Entries that were there before stay as they are, unless their problem is tuned again. Raises
    ResultsError when the file is not a results file, or holds results for another architecture or
    Triton version (`versions` are this run's).
    """

    def __init__(
        self, path: str, arch: str, compute_units: int, versions: Mapping[str, str], defaults: GemmDefaults, *, sort: bool
    ) -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        self._compute_units = compute_units
        self._sort = sort
        self._is_csv = path.lower().endswith(".csv")
        self._head = ""
        self._kept: list[_Kept] = []
        if Path(path).exists():
            if self._is_csv:
                self._read_csv(arch, defaults)
            else:
                self._read_yaml(arch, versions, defaults)

    @property
    def problems(self) -> set[GemmProblem]:
        """Problems that the file had results for when it was opened."""
        return {kept.problem for kept in self._kept}

    def write(self, winners: Sequence[Winner]) -> None:
        """Replace the file by its old entries and `winners`. Raises OutputError; the old file then stays."""
        again = {winner.problem for winner in winners}
        kept = [entry for entry in self._kept if entry.problem not in again]
        if self._sort:
            winners = sorted(winners, key=lambda winner: winner.problem)
            kept = sorted(kept, key=lambda entry: entry.problem)
        if self._is_csv:
            self._write_csv(kept, winners)
        else:
            text = tune_gemm_yaml.winners_text(winners)
            head, _, lines = text.partition("\n")
            body = "".join(entry.text for entry in kept) + (lines if winners or not kept else "")
            write_whole(self.path, (self._head or head + "\n") + body)

    def _read_yaml(self, arch: str, versions: Mapping[str, str], defaults: GemmDefaults) -> None:
        text = read_text(self.path, ResultsError)
        rows = tune_gemm_yaml.read_winners(self.path, defaults)
        for row in rows:
            _refuse_foreign(self.path, row, arch, versions)
        lines = text.splitlines(keepends=True)
        starts = [entry.line - 1 for entry in read_entries(text, self.path, ResultsError)]
        if starts and not text.endswith("\n"):
            lines[-1] += "\n"
        self._head = "".join(lines[: starts[0]]) if starts else ""
        ends = [*starts[1:], len(lines)]
        self._kept = [
            _Kept(row.problem, "".join(lines[start:end])) for row, start, end in zip(rows, starts, ends, strict=True)
        ]

    def _read_csv(self, arch: str, defaults: GemmDefaults) -> None:
        lines = [line for line in read_text(self.path, ResultsError).splitlines() if line.strip()]
        rows = aiter_csv.read_rows(self.path, defaults)
        for row in rows:
            if row.gfx not in (None, arch):
                raise ResultsError(f"{self.path} holds results for {row.gfx}, this run is for {arch}: give another -o")
        self._head = lines[0]
        self._kept = [_Kept(row.problem, line) for row, line in zip(rows, lines[1:], strict=True)]

    def _write_csv(self, kept: Sequence[_Kept], winners: Sequence[Winner]) -> None:
        written = aiter_csv.write_winners(self.path, winners, self._compute_units)
        self.notes = written.notes
        if kept:
            head, *lines = read_text(self.path, ResultsError).splitlines()
            if winners and head != self._head:
                raise ResultsError(f"{self.path} has the columns {self._head!r}, this run writes {head!r}: give another -o")
            write_whole(self.path, "\n".join([self._head, *(entry.text for entry in kept), *lines]) + "\n")


def _refuse_foreign(path: str, row: TunedRow, arch: str, versions: Mapping[str, str]) -> None:
    if row.arch not in (None, arch):
        raise ResultsError(f"{path} holds results for {row.arch}, this run is for {arch}: give another -o")
    for name in _VERSIONS_THAT_MATTER:
        if (theirs := row.versions.get(name)) not in (None, versions.get(name)):
            raise ResultsError(
                f"{path} holds results of {name} {theirs}, this is {name} {versions.get(name)}: give another -o"
            )
