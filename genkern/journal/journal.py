"""The journal of a run: one JSON line per fact, appended as it arises, so that a killed run can be continued."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from genkern.errors import GenkernError, OutputError
from genkern.file_io import open_regular
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Unfit
from genkern.journal.batch import codes_columns, columns, shortened, unfit_columns
from genkern.journal.binaries import JournalBinary, binary_columns
from genkern.journal.facts import Begun, Compiled, Ended, JournalFacts, Start
from genkern.journal.header import SCHEMA
from genkern.journal.journal_line import chained_line, checksums, journal_line
from genkern.journal.search_steps import SearchRecord, search_value
from genkern.result.journal_values import values_of
from genkern.result.result import Result

# Facts wait until this many of one kind have gathered, or for this many seconds, before they are written. A killed
# process loses the waiting facts.
BATCH_FACTS = 512
BATCH_S = 1.0


# Waiting facts of one problem: measurements, unfit configs with reasons, and the code digests of configs.
_Group = tuple[list[Measurement], list[tuple[Sequence[str], Unfit]], dict[str, str]]


class FactWriter(JournalFacts, ABC):
    """The facts of a journal, to which a run adds new facts.

    Facts about single candidates wait to be written together, up to BATCH_FACTS of them or for BATCH_S seconds. Any
    other fact is written at once, after all waiting ones. Safe to use from several threads of one process.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._lock = threading.RLock()
        self._waiting: dict[GemmProblem, _Group] = {}
        self._timer: threading.Timer | None = None
        self._failure: GenkernError | None = None

    def add_begun(self, problem: GemmProblem, begun: Begun) -> None:
        self.of(problem).begun = begun
        self._append("began", vars(begun), problem)

    def add_unfit(self, problem: GemmProblem, configs: Sequence[str], unfit: Unfit, code: str = "") -> None:
        """Record configs that are unfit for the same reason, as one fact: a continued run knows all of them or none.

        `code`: digest of their code, "" if unknown.
        """
        self.of(problem).unfit |= dict.fromkeys(configs, unfit)
        with self._lock:
            self._note_codes(problem, configs, code)
            self._group(problem)[1].append((configs, unfit))
            self._wait(problem)

    def add_compiled(self, problem: GemmProblem, compiled: Compiled) -> None:
        self.of(problem).compiled = compiled
        self._append("compiled", vars(compiled), problem)

    def add_screened(self, problem: GemmProblem, measurement: Measurement, code: str = "") -> None:
        """Record a measurement of the screening. `code`: digest of the config's code, as in `unfit`."""
        self.of(problem).screened[measurement.config] = measurement
        with self._lock:
            self._note_codes(problem, [measurement.config], code)
            self._group(problem)[0].append(measurement)
            self._wait(problem)

    def add_search(self, problem: GemmProblem, searched: SearchRecord) -> None:
        """Record how the search went: what the strategy was asked and told."""
        self._append("searched", search_value(searched), problem)

    def add_binaries(self, problem: GemmProblem, made: Mapping[str, JournalBinary]) -> None:
        """Record the compiled binaries, by the first config of each unit."""
        self.of(problem).made |= made
        self._append("made", binary_columns(made), problem)

    def add_retimed(self, problem: GemmProblem, finals: list[Measurement]) -> None:
        """Record all finals of a problem as one fact, since a part of them would not be comparable."""
        self.of(problem).finals = finals
        self._append("retimed", columns(finals), problem)

    def add_confirmed(self, problem: GemmProblem, finals: list[Measurement]) -> None:
        """Record the confirmation of the winner and of what it is compared with, as one fact."""
        self.of(problem).confirmed = finals
        self._append("confirmed", columns(finals), problem)

    def add_check(self, problem: GemmProblem, check: Check) -> None:
        """Record a check.

        If its process was lost, it is a fact of another kind, so that a continued run repeats the check.
        """
        facts = self.of(problem)
        (facts.unchecked if check.lost else facts.checks)[check.config] = check
        self._append("unchecked" if check.lost else "checked", dataclasses.asdict(check), problem)

    def add_row_check(self, problem: GemmProblem, check: Check) -> None:
        """Record a comparison of rows to the bit."""
        self.of(problem).rows[check.config] = check
        self._append("rows", dataclasses.asdict(check), problem)

    def add_sums(self, problem: GemmProblem, sums: Mapping[str, str]) -> None:
        """Record the order in which library calls add along K, by their names in the finals."""
        self.of(problem).sums |= sums
        self._append("summed", dict(sums), problem)

    def add_winner(self, winner: Result) -> None:
        """Record the winner of a problem."""
        self._note_winner(winner)
        self._append("won", values_of(winner), winner.problem, decides=True)

    def add_end(self, problem: GemmProblem, ended: Ended) -> None:
        self.of(problem).ended = ended
        outcomes = {outcome.value: count for outcome, count in ended.outcomes.items()}
        when = {name: value for name in ("time_s", "stage_s") if (value := getattr(ended, name))}
        self._append("ended", {"outcomes": outcomes, "message": ended.message, **when}, problem)

    def add_retraction(self, problem: GemmProblem, configs: Sequence[str]) -> None:
        """Remove the screening results of `configs`: the device may have been broken when the configs were measured."""
        for config in configs:
            self.of(problem).screened.pop(config, None)
        self._append("retracted", list(configs), problem)

    def add_outdated(self, problem: GemmProblem, configs: Sequence[str]) -> None:
        """Remove all facts about these configs, whose generated code has changed."""
        self.of(problem).forget(configs)
        self._append("outdated", shortened(configs), problem)

    def flush(self) -> None:
        """Write the waiting facts. Raises GenkernError if that fails, or if a delayed write has failed before."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            lines = [line for problem, group in self._waiting.items() for line in self._lines_of(problem, *group)]
            if lines:
                self._put(lines)
            self._waiting.clear()

    def _append(self, fact: str, value: Any, problem: GemmProblem | None = None, *, decides: bool = False) -> None:
        """Write one fact. A fact that decides a problem is on disk before the result is reported."""
        with self._lock:
            self.flush()
            self._put(self._lines(fact, value, problem), decides=decides)

    def _group(self, problem: GemmProblem) -> _Group:
        return self._waiting.setdefault(problem, ([], [], {}))

    def _note_codes(self, problem: GemmProblem, configs: Sequence[str], code: str) -> None:
        known = self.of(problem).codes
        if new := {config: code for config in configs if code and known.get(config) != code}:
            known |= new
            self._group(problem)[2].update(new)

    def _wait(self, problem: GemmProblem) -> None:
        screened, unfit, _ = self._waiting[problem]
        if max(len(screened), len(unfit)) >= BATCH_FACTS or self._failure is not None:
            self.flush()
        elif self._timer is None:
            self._timer = threading.Timer(BATCH_S, self._flush_late)
            self._timer.daemon = True
            self._timer.start()

    def _flush_late(self) -> None:
        with self._lock:
            try:
                self.flush()
            except GenkernError as error:
                # Reported to the thread that adds the next fact, since no one waits for the timer's thread.
                self._failure = error
                self._waiting.clear()

    def _lines_of(
        self,
        problem: GemmProblem,
        screened: Sequence[Measurement],
        unfit: Sequence[tuple[Sequence[str], Unfit]],
        codes: Mapping[str, str],
    ) -> list[bytes]:
        # Sorted by name, so that names shorten well. The order has no meaning, since the facts are from one moment.
        screened = sorted(screened, key=lambda measurement: measurement.config)
        lines = self._lines("coded", codes_columns(codes), problem) if codes else []
        lines += self._lines("unfit", unfit_columns(unfit), problem) if unfit else []
        return lines + (self._lines("screened", columns(screened), problem) if screened else [])

    @abstractmethod
    def _lines(self, fact: str, value: Any, problem: GemmProblem | None) -> list[bytes]:
        """Return the lines that record this fact."""

    @abstractmethod
    def _put(self, lines: Sequence[bytes], *, decides: bool = False) -> None:
        """Write whole lines. Lines that decide a problem are synchronised to disk."""


class Journal(FactWriter):
    """Append-only facts of one run.

    `header` says what the facts depend on (versions, device, space, budget). Opening a journal with another header
    raises UnusableJournal with the differences. A last line that was cut off by a kill is dropped. Damage anywhere else
    raises UnusableJournal: each line ends with its own checksum.
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._header = {"schema": SCHEMA, **header}
        length = self._read(self._header) if self.path.exists() else 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab", opener=open_regular)  # noqa: SIM115  open for the life of the run
            self._file.truncate(length)
        except OSError as error:
            raise OutputError(f"cannot write the journal {self.path}: {error.strerror}; try another -o") from None
        if length == 0:
            self._append("header", self._header)

    def started(self, start: Start) -> None:
        """Record that the run starts or is continued."""
        self._note_start(start)
        with self._lock:
            lines: list[bytes] = []
            numbers = [self._number(problem, lines) for problem in start.problems]
            self._put([*lines, journal_line("started", {**vars(start), "problems": numbers})])

    def close(self) -> None:
        # A failed write was reported to the thread that added the next fact; closing only tries again.
        with contextlib.suppress(OSError, OutputError):
            self.flush()
        with contextlib.suppress(OSError):
            self._file.close()

    def take_over(self, lines: bytes, *, decides: bool) -> None:
        """Write whole lines that a JournalCopy sent."""
        with self._lock:
            self._put([lines], decides=decides)

    def _lines(self, fact: str, value: Any, problem: GemmProblem | None) -> list[bytes]:
        lines: list[bytes] = []
        number = None if problem is None else self._number(problem, lines)
        return [*lines, journal_line(fact, value, number)]

    def _number(self, problem: GemmProblem, lines: list[bytes]) -> int:
        """Return the problem's number. For a new problem, the line that introduces it is appended to `lines`."""
        if problem not in self._numbers:
            self._numbers[problem] = len(self._numbers)
            lines.append(journal_line("problem", dataclasses.asdict(problem)))
        return self._numbers[problem]

    def _put(self, lines: Sequence[bytes], *, decides: bool = False) -> None:
        with self._full_disk_is_said():
            self._file.write(b"".join(map(self._placed, b"".join(lines).splitlines())))
            self._file.flush()
            if decides:
                os.fsync(self._file.fileno())

    def _placed(self, line: bytes) -> bytes:
        """Return the line extended by the checksum of the line before it.

        Thus a lost, repeated or moved line is noticed.
        """
        if self._checksum is not None:
            line = chained_line(line, self._checksum)
            _, self._checksum = checksums(line)
        return line + b"\n"

    @contextlib.contextmanager
    def _full_disk_is_said(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"cannot write the journal {self.path}: {error.strerror}; free space, then run again"
            ) from None
