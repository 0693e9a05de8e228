"""The journal of a run: one JSON line a fact, appended as it happens, so that a killed run can go on."""

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
from genkern.files import regular
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Unfit, Winner
from genkern.journal.batch import codes_columns, columns, shortened, unfit_columns
from genkern.journal.facts import Begun, Compiled, Ended, JournalFacts, Start
from genkern.journal.header import SCHEMA
from genkern.journal.line import behind, checksums, journal_line, values_of
from genkern.journal.made import MadeBinary, made_columns
from genkern.journal.searched import Searched, value_of

# So many facts of one kind wait for each other at most, and none waits longer: what a killed process takes along.
BATCH_FACTS = 512
BATCH_S = 1.0


# Of one problem what waits: measurements, what makes configs unfit, and of which code these are.
_Group = tuple[list[Measurement], list[tuple[Sequence[str], Unfit]], dict[str, str]]


class Facts(JournalFacts, ABC):
    """Facts to which a run adds its own.

    Those of which there is one a candidate wait to be written together, BATCH_FACTS of them or BATCH_S seconds; any
    other fact is written at once, after all that wait. Safe to use from several threads of one process.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._lock = threading.RLock()
        self._waiting: dict[GemmProblem, _Group] = {}
        self._timer: threading.Timer | None = None
        self._failure: GenkernError | None = None

    def began(self, problem: GemmProblem, begun: Begun) -> None:
        self.of(problem).begun = begun
        self._append("began", vars(begun), problem)

    def unfit(self, problem: GemmProblem, configs: Sequence[str], unfit: Unfit, code: str = "") -> None:
        """Configs that share what makes them unfit are one fact: a run that goes on knows of all of them or of none.

        `code` says of which code they are, "" where nobody knows.
        """
        self.of(problem).unfit |= dict.fromkeys(configs, unfit)
        with self._lock:
            self._note_codes(problem, configs, code)
            self._group(problem)[1].append((configs, unfit))
            self._wait(problem)

    def compiled(self, problem: GemmProblem, compiled: Compiled) -> None:
        self.of(problem).compiled = compiled
        self._append("compiled", vars(compiled), problem)

    def screened(self, problem: GemmProblem, measurement: Measurement, code: str = "") -> None:
        """`code` says of which code the config is, as in `unfit`."""
        self.of(problem).screened[measurement.config] = measurement
        with self._lock:
            self._note_codes(problem, [measurement.config], code)
            self._group(problem)[0].append(measurement)
            self._wait(problem)

    def searched(self, problem: GemmProblem, searched: Searched) -> None:
        """Record how what was screened came to be: what the strategy asked and was told."""
        self._append("searched", value_of(searched), problem)

    def made(self, problem: GemmProblem, made: Mapping[str, MadeBinary]) -> None:
        """Record what compilers made, by the first config of each unit."""
        self.of(problem).made |= made
        self._append("made", made_columns(made), problem)

    def retimed(self, problem: GemmProblem, finals: list[Measurement]) -> None:
        """All finals of a problem are one fact: half of them would not be comparable."""
        self.of(problem).finals = finals
        self._append("retimed", columns(finals), problem)

    def confirmed(self, problem: GemmProblem, finals: list[Measurement]) -> None:
        """The rounds that chose nobody, of the chosen one and of what it is compared with: one fact, as the finals."""
        self.of(problem).confirmed = finals
        self._append("confirmed", columns(finals), problem)

    def checked(self, problem: GemmProblem, check: Check) -> None:
        """A check whose process was lost is a fact of its own, so that a run that goes on makes it again."""
        facts = self.of(problem)
        (facts.unchecked if check.lost else facts.checks)[check.config] = check
        self._append("unchecked" if check.lost else "checked", dataclasses.asdict(check), problem)

    def rows(self, problem: GemmProblem, check: Check) -> None:
        """A comparison of rows to the bit."""
        self.of(problem).rows[check.config] = check
        self._append("rows", dataclasses.asdict(check), problem)

    def summed(self, problem: GemmProblem, sums: Mapping[str, str]) -> None:
        """In which order calls of libraries add up K, by their names among the finals."""
        self.of(problem).sums |= sums
        self._append("summed", dict(sums), problem)

    def won(self, winner: Winner) -> None:
        """Record the end of a problem."""
        self._note_winner(winner)
        self._append("won", values_of(winner), winner.problem, decides=True)

    def ended(self, problem: GemmProblem, ended: Ended) -> None:
        self.of(problem).ended = ended
        outcomes = {outcome.value: count for outcome, count in ended.outcomes.items()}
        self._append("ended", {"outcomes": outcomes, "message": ended.message}, problem)

    def retracted(self, problem: GemmProblem, configs: Sequence[str]) -> None:
        """Forget what was screened of these configs: it says nothing about them."""
        for config in configs:
            self.of(problem).screened.pop(config, None)
        self._append("retracted", list(configs), problem)

    def outdated(self, problem: GemmProblem, configs: Sequence[str]) -> None:
        """Forget all that was found of these configs: genkern generates other code for them now."""
        self.of(problem).forget(configs)
        self._append("outdated", shortened(configs), problem)

    def flush(self) -> None:
        """Write what waits. Raises GenkernError when that, or doing so in the meantime, fails."""
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
        """Keep one fact. One that decides a problem is on disk before anybody is told the result."""
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
                # For whoever adds the next fact: nobody waits for this thread.
                self._failure = error
                self._waiting.clear()

    def _lines_of(
        self,
        problem: GemmProblem,
        screened: Sequence[Measurement],
        unfit: Sequence[tuple[Sequence[str], Unfit]],
        codes: Mapping[str, str],
    ) -> list[bytes]:
        # In the order of their names, of which the next then says little; of one moment, the order says nothing.
        screened = sorted(screened, key=lambda measurement: measurement.config)
        lines = self._lines("coded", codes_columns(codes), problem) if codes else []
        lines += self._lines("unfit", unfit_columns(unfit), problem) if unfit else []
        return lines + (self._lines("screened", columns(screened), problem) if screened else [])

    @abstractmethod
    def _lines(self, fact: str, value: Any, problem: GemmProblem | None) -> list[bytes]:
        """The lines that say this fact."""

    @abstractmethod
    def _put(self, lines: Sequence[bytes], *, decides: bool = False) -> None:
        """Write whole lines; those that decide a problem, to the disk."""


class Journal(Facts):
    """Append-only facts of one run.

    `header` says what the facts depend on (versions, device, space, budget). Opening a journal with
    another header raises UnusableJournal with the differences. A last line that was cut short by a kill is
    dropped; damage anywhere else raises UnusableJournal: each line ends with its own checksum.
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._header = {"schema": SCHEMA, **header}
        length = self._read(self._header) if self.path.exists() else 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab", opener=regular)  # noqa: SIM115  open for the life of the run
            self._file.truncate(length)
        except OSError as error:
            raise OutputError(f"cannot write the journal {self.path}: {error.strerror}; try another -o") from None
        if length == 0:
            self._append("header", self._header)

    def started(self, start: Start) -> None:
        """Record that the run begins, or goes on."""
        self._note_start(start)
        with self._lock:
            lines: list[bytes] = []
            numbers = [self._number(problem, lines) for problem in start.problems]
            self._put([*lines, journal_line("started", {**vars(start), "problems": numbers})])

    def close(self) -> None:
        # What could not be written was reported when it was tried; closing only tries again.
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
        """The number of the problem; a line that introduces it is added to `lines` when it has none yet."""
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
        """The line as it stands at the end of the file: none can be lost, doubled or moved unnoticed."""
        if self._checksum is not None:
            line = behind(line, self._checksum)
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
