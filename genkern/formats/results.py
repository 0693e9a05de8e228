"""ResultsFile: the winners so far in a file that others read, always written whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from genkern.errors import InputError, ResultsError
from genkern.files import is_stream, read_text, shown_path, write_whole
from genkern.formats import aiter_csv, tune_gemm_yaml
from genkern.formats.flat_yaml import Entry, read_entries
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import PREDICTED, Winner
from genkern.kernels.determinism import is_deterministic

# Rows that differ here were tuned for something else; a new device or driver is said in the file only.
_VERSIONS_THAT_MATTER = ("triton",)


@dataclass(frozen=True)
class RunFacts:
    """What rows must have in common with a run to stand in one file with its results."""

    arch: str
    compute_units: int
    versions: Mapping[str, str]
    predicted: bool


@dataclass(frozen=True)
class _Kept:
    """An entry that was in the file before, kept to the letter."""

    problem: GemmProblem
    text: str
    config: Config | None


class ResultsFile:
    """One results file, YAML (tune_gemm's) or CSV (AITER's) by its suffix.

    Entries that were there before stay as they are, unless their problem is tuned again; an empty file has none, and
    neither has a stream, whose results are gone when they are written. Raises
    ResultsError when the file is not a results file, or holds results of another architecture, or, but for
    the problems in `again`, of another Triton version or predicted times where this run measures (and the
    other way round).
    """

    def __init__(
        self,
        path: str,
        facts: RunFacts,
        defaults: GemmDefaults,
        *,
        sort: bool = False,
        again: Collection[GemmProblem] = (),
    ) -> None:
        self.path = path
        self._facts = facts
        self._sort = sort
        self._again = frozenset(again)
        self._is_csv = path.lower().endswith(".csv")
        self._head = ""
        self._kept: list[_Kept] = []
        self.is_stream = is_stream(path)
        if not self.is_stream and Path(path).exists() and read_text(path, ResultsError).strip():
            if self._is_csv:
                self._read_csv(defaults)
            else:
                self._read_yaml(defaults)

    @property
    def problems(self) -> set[GemmProblem]:
        """Problems that the file had results for when it was opened."""
        return {kept.problem for kept in self._kept}

    @property
    def configs(self) -> dict[GemmProblem, Config]:
        """What the file had for each problem when it was opened, where that is a config of ours or tune_gemm's."""
        return {kept.problem: kept.config for kept in self._kept if kept.config is not None}

    @property
    def not_deterministic(self) -> set[GemmProblem]:
        """Those of `problems` whose config may give another result in another run."""
        return {problem for problem, config in self.configs.items() if not is_deterministic(problem, config)}

    def require_room(self, problems: Sequence[GemmProblem]) -> None:
        """Raise InputError or ResultsError when this file cannot hold results of these problems; nothing is written."""
        if not self._is_csv:
            return
        where = shown_path(self.path)
        ops = {problem.op for problem in problems} | {kept.problem.op for kept in self._kept}
        if len(ops) > 1:
            raise InputError(
                f"{where}: AITER's CSV has other columns for each of {', '.join(sorted(ops))}: "
                "give each an -o of its own (--op), or one that ends in .yaml"
            )
        for problem in problems:
            if reason := aiter_csv.obstacle(problem):
                raise InputError(f"{where} cannot hold {problem.size}: {reason}; give an -o that ends in .yaml")
        head, _ = self._csv_text(())
        if self._kept and head != self._head:
            raise ResultsError(
                f"{where} has the columns {self._head.strip()}, this run writes {head.strip()}: give another -o"
            )

    def write(self, winners: Sequence[Winner]) -> None:
        """Replace the file by its old entries and `winners`. Raises OutputError; the old file then stays."""
        again = {winner.problem for winner in winners}
        kept = [entry for entry in self._kept if entry.problem not in again]
        if self._sort:
            winners = sorted(winners, key=lambda winner: winner.problem)
            kept = sorted(kept, key=lambda entry: entry.problem)
        head, body = self._csv_text(winners) if self._is_csv else _yaml_text(winners)
        if kept and not winners:
            body = ""
        write_whole(self.path, (self._head or head) + "".join(entry.text for entry in kept) + body)

    def _csv_text(self, winners: Sequence[Winner]) -> tuple[str, str]:
        problems = [winner.problem for winner in winners] + [entry.problem for entry in self._kept]
        op = problems[0].op if problems else "a16w16"
        text = aiter_csv.frame(winners, op, self._facts.compute_units).to_csv(index=False)
        head, _, body = text.partition("\n")
        return head + "\n", body

    def _read_yaml(self, defaults: GemmDefaults) -> None:
        text = read_text(self.path, ResultsError)
        rows = tune_gemm_yaml.read_winners(self.path, defaults)
        for row in rows:
            self._refuse_foreign(row)
        entries = read_entries(text, shown_path(self.path), ResultsError)
        self._head, texts = _split_yaml(text, entries)
        self._kept = [_Kept(row.problem, entry, row.config) for row, entry in zip(rows, texts, strict=True)]

    def _read_csv(self, defaults: GemmDefaults) -> None:
        lines = [line for line in read_text(self.path, ResultsError).splitlines() if line.strip()]
        rows = aiter_csv.read_rows(self.path, defaults)
        if len(rows) != len(lines) - 1:
            raise ResultsError(f"{shown_path(self.path)} has rows of more than one line: give another -o")
        for row in rows:
            self._refuse_arch(row.gfx)
            if row.problem not in self._again:
                self._refuse_source(row.predicted)
        # A file of AITER's columns alone gets ours, which the rows that it has do not fill.
        lines = aiter_csv.widened(lines)
        self._head = lines[0] + "\n"
        self._kept = [_Kept(row.problem, f"{line}\n", row.config) for row, line in zip(rows, lines[1:], strict=True)]

    def _refuse_foreign(self, row: TunedRow) -> None:
        self._refuse_arch(row.arch)
        if row.problem in self._again:
            return
        for name in _VERSIONS_THAT_MATTER:
            theirs, ours = row.versions.get(name), self._facts.versions.get(name)
            if theirs not in (None, ours):
                self._refuse(f"results of {name} {theirs}, this is {name} {ours}", " or --all")
        self._refuse_source(None if row.time_source is None else row.time_source == PREDICTED)

    def _refuse_arch(self, arch: str | None) -> None:
        if arch not in (None, self._facts.arch):
            self._refuse(f"results for {arch}, this run is for {self._facts.arch}")

    def _refuse_source(self, predicted: bool | None) -> None:
        if predicted not in (None, self._facts.predicted):
            theirs, ours = ("predicted", "measures") if predicted else ("measured", "predicts")
            self._refuse(f"{theirs} times, this run {ours}", " or --all")

    def _refuse(self, what: str, way_out: str = "") -> None:
        raise ResultsError(f"{shown_path(self.path)} holds {what}: give another -o{way_out}")


def _yaml_text(winners: Sequence[Winner]) -> tuple[str, str]:
    head, _, body = tune_gemm_yaml.winners_text(winners).partition("\n")
    return head + "\n", body


def _split_yaml(text: str, entries: Sequence[Entry]) -> tuple[str, list[str]]:
    """What stands before the first entry, and the text of each; entries can be joined and added to again."""
    lines = text.splitlines(keepends=True)
    if lines and not text.endswith("\n"):
        lines[-1] += "\n"
    starts = [entry.line - 1 for entry in entries]
    if not starts:
        return "", []
    plain = all(lines[start].startswith("- ") for start in starts) and len(set(starts)) == len(starts)
    if plain and not any(line.startswith(("...", "---", "%")) for line in lines):
        ends = [*starts[1:], len(lines)]
        return "".join(lines[: starts[0]]), ["".join(lines[start:end]) for start, end in zip(starts, ends, strict=True)]
    # Another way to write a list, JSON for example: nothing can be added to that without writing it anew.
    return "", [
        "- " + yaml.safe_dump(dict(entry.values), default_flow_style=True, sort_keys=False, width=10**9)
        for entry in entries
    ]
