"""`ResultsFile`: the winners found so far in a file that other programs read; other rows are kept unchanged."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import InputError, ResultsError
from genkern.file_io import is_stream, read_text, shown_path, write_whole
from genkern.files import aiter_fmoe
from genkern.files.file_kind import FileKind, kind_of
from genkern.files.gemm_entry import GemmDefaults
from genkern.gemm.config import Config
from genkern.gemm.gpus import NOT_PRESENT, Gpu, gpu_for_device, partition_of
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import is_deterministic
from genkern.kernels.generate import generate
from genkern.result.device import DeviceKey
from genkern.result.result import Result

# A run refuses a file with rows of its device that were tuned with another version of these. A new driver is only
# recorded.
_VERSIONS_THAT_MATTER = ("triton",)
# Enough to meet a row of another run in nearly every file that has one; read in 0.1 s.
_FIRST_ROWS = 1000


@dataclass(frozen=True)
class RunFacts:
    """What a row must have in common with a run to count as its result.

    key: the device
    versions: versions of Triton and other software, by name
    predicted: whether the run predicts times instead of measuring
    """

    key: DeviceKey
    versions: Mapping[str, str]
    predicted: bool


@dataclass(frozen=True)
class _Kept:
    """A row that was in the file before; `is_ours`: whether it is a result for this run's device."""

    row: Result
    text: str
    is_ours: bool

    @property
    def problem(self) -> GemmProblem:
        return self.row.problem


class ResultsFile:
    """One results file, of the kind that its suffix determines (`kind_of`).

    Only genkern's rows for the device of this run count: they are `problems`, and are replaced in place when their
    problem is tuned again. Rows of another device, another library or another weight layout stay unchanged. An empty
    file has no rows, and neither has a stream, which cannot be read back.

    Raises ResultsError if the file is not a results file, or if rows of this device, except for the problems in
    `again`, have another Triton version, or are predicted in a run that measures, or measured in a run that predicts.
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
        self._kind = kind_of(path)
        self._facts = facts
        self._sort = sort
        self._again = frozenset(again)
        self._head = ""
        self._newline = "\n"
        self._kept: list[_Kept] = []
        self.is_stream = is_stream(path)
        if not self.is_stream and Path(path).exists() and read_text(path, ResultsError).strip():
            self._read(defaults)

    @property
    def problems(self) -> set[GemmProblem]:
        """Problems for which the file had results on this device when it was opened."""
        return {kept.problem for kept in self._kept if kept.is_ours}

    @property
    def configs(self) -> dict[GemmProblem, Config]:
        """The config of each of `problems` when the file was opened."""
        ours = (kept.row for kept in self._kept if kept.is_ours)
        return {row.problem: row.config for row in ours if row.config is not None}

    @property
    def rows(self) -> list[Result]:
        """The rows of `problems`, in the order of the file when it was opened."""
        return [kept.row for kept in self._kept if kept.is_ours]

    @property
    def invariant(self) -> set[GemmProblem]:
        """The `problems` whose winner is batch-invariant: it has the order of sums of the winners for other M."""
        return {row.problem for row in self.rows if row.batch_invariant}

    @property
    def not_deterministic(self) -> set[GemmProblem]:
        """The `problems` whose config may give different bits in another run."""
        return {problem for problem, config in self.configs.items() if not is_deterministic(problem, config)}

    def outdated(self, problems: Collection[GemmProblem]) -> set[GemmProblem]:
        """Return the `problems` whose row has a kernel that this genkern generates differently. Takes 12 ms per row."""
        rows = (kept.row for kept in self._kept if kept.is_ours and kept.row.source and kept.problem in problems)
        return {row.problem for row in rows if row.source != source_today(row)}

    @property
    def others(self) -> str:
        """A sentence with the number of rows that belong to other devices or libraries; "" if there are none."""
        count = sum(not kept.is_ours for kept in self._kept)
        rows = "1 row" if count == 1 else f"{count} rows"
        return f"{shown_path(self.path)} keeps {rows} of other devices or libraries unchanged" if count else ""

    def require_room(self, problems: Sequence[GemmProblem]) -> None:
        """Raise InputError or ResultsError if this file cannot hold results of these problems; writes nothing."""
        where, wanted = shown_path(self.path), frozenset(problems)
        ops = sorted({problem.op for problem in problems} | {kept.problem.op for kept in self._kept if kept.is_ours})
        if reason := self._kind.no_room(ops, self._head if self._kept else ""):
            raise ResultsError(f"{where}: {reason}: give another -o, or one that ends in .yaml")
        for problem in problems:
            if reason := self._kind.obstacle(problem):
                raise InputError(f"{where} cannot hold {problem.size}: {reason}; give an -o that ends in .yaml")
        for kept in self._kept:
            if kept.problem in wanted:
                self._require_replaceable(kept)

    def write(self, winners: Sequence[Result]) -> None:
        """Replace the file by its old rows and `winners`. Raises OutputError; the old file then stays."""
        kept = self._kept
        if self._sort:
            winners = sorted(winners, key=lambda winner: winner.problem)
            kept = sorted(kept, key=lambda entry: entry.problem)
        head, lines = self._kind.render(winners, self._facts.key.compute_units, self._head if kept else "")
        new = {winner.problem: self._ended(line) for winner, line in zip(winners, lines, strict=True)}
        texts = []
        placed: set[GemmProblem] = set()
        for entry in kept:
            if not entry.is_ours or entry.problem not in new:
                texts.append(entry.text)
            elif entry.problem not in placed:
                texts.append(new[entry.problem] + _remarks(entry.text))
                placed.add(entry.problem)
        texts += [text for problem, text in new.items() if problem not in placed]
        write_whole(self.path, head + ("".join(texts) or self._kind.EMPTY))

    def _read(self, defaults: GemmDefaults) -> None:
        text, where = read_text(self.path, ResultsError), shown_path(self.path)
        rows: list[tuple[Result, bool]] = []
        # Rows are read one by one, so that a file of another run is refused at its first row, however long it is.
        for row in self._kind.read_rows(text, where, defaults):
            is_ours = _is_result_of(row, self._facts, self._kind)
            if is_ours and row.problem not in self._again:
                _refuse_other_run(self.path, row, self._facts)
            rows.append((row, is_ours))
        self._newline = "\r\n" if text[: text.find("\n")].endswith("\r") else "\n"
        whole = text if text.endswith("\n") else text + self._newline
        self._head, texts = self._kind.split(whole, where, [row.line for row, _ in rows])
        for (row, is_ours), row_text in zip(rows, texts, strict=True):
            self._kept.append(_Kept(row, row_text, is_ours))

    def _require_replaceable(self, kept: _Kept) -> None:
        """Refuse to replace a measured time by a prediction, and to add a second row beside another library's."""
        row = kept.row
        if kept.is_ours and self._facts.predicted and row.measured:
            _refuse(self.path, f"a measured time of {row.problem.size}, which a predicted one does not replace")
        same_key = row.is_of(self._facts.key) and _says_device(row, self._kind) and not row.bpreshuffle
        if self._kind.ONE_ROW_A_KEY and not kept.is_ours and same_key:
            time = f" ({row.duration_us:.4g} us)" if row.duration_us is not None else ""
            _refuse(
                self.path,
                f"{row.library or 'another library'}'s row for {row.problem.size}{time}, which stays; "
                "AITER takes one row per size and device",
            )

    def _ended(self, line: str) -> str:
        return line.removesuffix("\n") + self._newline


def require_same_run(path: str, facts: RunFacts, defaults: GemmDefaults) -> None:
    """Raise ResultsError if one of a results file's first rows is a result for this device from another kind of run.

    Its Triton is another one; or its time is predicted and this run measures, or the other way round. ResultsFile
    checks all rows, but only once it has read them; this takes 0.2 s for a file of 100,000 rows.
    """
    if is_stream(path) or not Path(path).exists() or not (text := read_text(path, ResultsError)).strip():
        return
    kind = kind_of(path)
    if aiter_fmoe.is_table(text.partition("\n")[0].strip().split(",")):
        # Not the results of the run, which lie beside it (genkern/cli/expert_table.py).
        return
    for row in itertools.islice(kind.read_rows(text, shown_path(path), defaults), _FIRST_ROWS):
        if _is_result_of(row, facts, kind):
            _refuse_other_run(path, row, facts)


def _is_result_of(row: Result, facts: RunFacts, kind: FileKind) -> bool:
    """Return True if the row is a result for the device of a run."""
    return row.is_genkerns and row.is_of(facts.key) and _says_device(row, kind)


def _says_device(row: Result, kind: FileKind) -> bool:
    """Return True if the row identifies its device sufficiently.

    For kinds with one row per key the key must be complete. Rows of tune_gemm's lists, which have no device, count as
    ours.
    """
    return not kind.ONE_ROW_A_KEY or (row.arch != "" and row.compute_units is not None)


def _refuse_other_run(path: str, row: Result, facts: RunFacts) -> None:
    for name in _VERSIONS_THAT_MATTER:
        theirs, ours = row.version_of(name), facts.versions.get(name)
        if theirs not in (None, ours):
            _refuse(path, f"results of {name} {theirs}, this is {name} {ours}", " or --all")
    if row.predicted not in (None, facts.predicted):
        if facts.predicted:
            _refuse(path, "measured times, this run predicts")
        _refuse(path, "predicted times, this run measures", " or --all")


def _refuse(path: str, what: str, way_out: str = "") -> None:
    raise ResultsError(f"{shown_path(path)} holds {what}: give another -o{way_out}")


def gpu_of(row: Result, arch: str) -> Gpu:
    """Return the GPU of a row, or a partition of one. Raises InputError for an unknown architecture."""
    gpu = gpu_for_device(row.device.removesuffix(NOT_PRESENT), arch)
    return partition_of(gpu, row.compute_units) if row.compute_units else gpu


def source_today(row: Result) -> str:
    """Return what `row.source` would be if its config were measured now; needs no GPU and takes some 12 ms.

    If it is equal, genkern still generates the row's kernels identically, except for comments. Returns "" if genkern
    generates none: for another library's row, a row without an architecture, or a config that is no longer legal.
    """
    if row.config is None or not row.is_genkerns or not row.arch:
        return ""
    try:
        gpu = gpu_of(row, row.arch)
        return generate(row.problem, [row.config], row.arch, gpu).source_digest(row.config, gpu)
    except InputError:
        return ""


def _remarks(text: str) -> str:
    """Return the comments and blank lines at the end of a row's text, which belong to the row that follows."""
    lines = text.splitlines(keepends=True)
    first = next((n for n in range(len(lines), 0, -1) if lines[n - 1].strip() and not _is_comment(lines[n - 1])), 0)
    return "".join(lines[first:])


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")
