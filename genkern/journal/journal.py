"""The journal of a run: one JSON line a fact, appended as it happens, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genkern.errors import OutputError, ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Outcome, Unfit, Winner
from genkern.journal.line import (
    check_of,
    entry_of,
    journal_line,
    lean,
    measurement_of,
    unsealed_header,
    values_of,
    winner_of,
)

SCHEMA = 3
# What a tool that does not answer leaves out: that alone makes no other run.
_NOT_ALWAYS_KNOWN = ("driver", "sm_clock_max_mhz", "memory_clock_max_mhz")


class UnusableJournal(ResultsError):
    """A journal that is damaged or of another run: `reason` says which, the message also what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}{advice}")
        self.reason = reason


@dataclass(frozen=True)
class Start:
    """One start of a run: what it was to tune, in its order, and by which command in which folder.

    `time_s` is `time.time()`.
    """

    problems: tuple[GemmProblem, ...]
    command: str
    folder: str
    host: str
    pid: int
    time_s: float


@dataclass(frozen=True)
class Begun:
    """A problem in the hands of a device: how many configs pruning left, and since when (`time.time()`)."""

    configs: int
    device_index: int
    time_s: float


@dataclass(frozen=True)
class Compiled:
    """A problem whose last binary is there: how many it has, how many others `failed`, how many of both were `cached`.

    Of a run that goes on, without those of configs that were unfit before.
    """

    binaries: int
    failed: int
    cached: int


@dataclass(frozen=True)
class Ended:
    """How a problem ended: what became of each config of its space, and why there is no winner, if there is none."""

    outcomes: dict[Outcome, int]
    message: str


@dataclass
class ProblemFacts:
    """What a journal knows of one problem. `begun`, `compiled` and `ended` are of the last start of the run.

    `unfit` are configs that never became candidates, by name (without those that are copies of others).
    `unchecked` are checks whose process was lost: no more than a record, for nothing follows from them.
    """

    unfit: dict[str, Unfit] = field(default_factory=dict)
    screened: dict[str, Measurement] = field(default_factory=dict)
    finals: list[Measurement] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    unchecked: dict[str, Check] = field(default_factory=dict)
    winner: Winner | None = None
    begun: Begun | None = None
    compiled: Compiled | None = None
    ended: Ended | None = None


class JournalFacts:
    """What a journal says; `read_journal` reads one that a run may be writing at the same time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header: Mapping[str, Any] = {}
        self.starts: list[Start] = []
        self.facts: dict[GemmProblem, ProblemFacts] = {}
        # A problem is written once; the facts that follow refer to it by its place among the problems.
        self._numbers: dict[GemmProblem, int] = {}

    def of(self, problem: GemmProblem) -> ProblemFacts:
        return self.facts.setdefault(problem, ProblemFacts())

    @property
    def numbers(self) -> dict[GemmProblem, int]:
        """The numbers by which lines refer to problems."""
        return dict(self._numbers)

    def winners(self) -> list[Winner]:
        """The winners so far, of every problem that this journal knows."""
        return [facts.winner for facts in list(self.facts.values()) if facts.winner is not None]

    def _read(self, expected: Mapping[str, Any] | None) -> int:
        """Take over what is there; returns the length in bytes of its whole lines."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        problems: list[GemmProblem] = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                if number == 1 and (schema := unsealed_header(line).get("schema", SCHEMA)) != SCHEMA:
                    # Lines of another version need not end as ours do.
                    raise UnusableJournal(
                        f"{self.path} is of another version of genkern (schema {schema}, here {SCHEMA})",
                        ": finish it with that one, use --all to tune again, or another -o",
                    )
                entry = entry_of(line)
                if number == 1:
                    self._compare(entry["value"] if entry["fact"] == "header" else {}, expected)
                elif entry["fact"] == "problem":
                    problems.append(GemmProblem(**entry["value"]))
                elif entry["fact"] == "started":
                    value = entry["value"]
                    self._note_start(Start(**{**value, "problems": tuple(problems[n] for n in value["problems"])}))
                else:
                    self._take(entry["fact"], entry["value"], problems[entry["problem"]])
            except ResultsError:
                raise
            except (ValueError, LookupError, TypeError, AttributeError):
                reason, advice = (
                    f"{self.path}, line {number}: damaged",
                    "; move the file away, or use --all to start anew",
                )
                raise UnusableJournal(reason, advice) from None
        self._numbers = {problem: number for number, problem in enumerate(problems)}
        return len(whole)

    def _compare(self, found: Mapping[str, Any], expected: Mapping[str, Any] | None) -> None:
        self.header = found
        if expected is None:
            expected = {**found, "schema": SCHEMA}
        differences = _differences(found, expected)
        if differences:
            raise UnusableJournal(
                f"{self.path} is of another run ({'; '.join(differences)})",
                ": repeat its command (genkern status shows it), use --all to tune again, or another -o",
            )

    def _note_start(self, start: Start) -> None:
        self.starts.append(start)
        for facts in self.facts.values():
            facts.begun = facts.compiled = facts.ended = None

    def _take(self, fact: str, value: Any, problem: GemmProblem) -> None:
        facts = self.of(problem)
        if fact == "screened":
            facts.screened[value["config"]] = measurement_of(value)
        elif fact == "unfit":
            unfit = Unfit(Outcome(value["outcome"]), value["message"])
            facts.unfit |= dict.fromkeys(value["configs"], unfit)
        elif fact == "compiled":
            facts.compiled = Compiled(**value)
        elif fact == "retimed":
            facts.finals = [measurement_of(entry) for entry in value]
        elif fact == "checked":
            facts.checks[value["config"]] = check_of(value)
        elif fact == "unchecked":
            facts.unchecked[value["config"]] = check_of(value)
        elif fact == "won":
            facts.winner = winner_of(value, problem)
        elif fact == "began":
            facts.begun = Begun(**value)
        elif fact == "ended":
            facts.ended = Ended({Outcome(name): n for name, n in value["outcomes"].items()}, value["message"])
        elif fact == "retracted":
            for config in value:
                facts.screened.pop(config, None)
        else:
            raise ValueError(fact)


def read_journal(path: str | Path) -> JournalFacts:
    """The facts of any run's journal, which is only read and may be growing.

    Raises FileNotFoundError, and ResultsError for damage and for a journal of another schema.
    """
    facts = JournalFacts(path)
    facts._read(None)
    return facts


class Facts(JournalFacts, ABC):
    """Facts to which a run adds its own."""

    def began(self, problem: GemmProblem, begun: Begun) -> None:
        self.of(problem).begun = begun
        self._append("began", vars(begun), problem)

    def unfit(self, problem: GemmProblem, configs: Sequence[str], unfit: Unfit) -> None:
        """Configs that share what makes them unfit are one fact: a run that goes on knows of all of them or of none."""
        self.of(problem).unfit |= dict.fromkeys(configs, unfit)
        value = {"configs": list(configs), "outcome": unfit.outcome.value, "message": unfit.message}
        self._append("unfit", value, problem)

    def compiled(self, problem: GemmProblem, compiled: Compiled) -> None:
        self.of(problem).compiled = compiled
        self._append("compiled", vars(compiled), problem)

    def screened(self, problem: GemmProblem, measurement: Measurement) -> None:
        self.of(problem).screened[measurement.config] = measurement
        self._append("screened", lean(measurement), problem)

    def retimed(self, problem: GemmProblem, finals: list[Measurement]) -> None:
        """All finals of a problem are one fact: half of them would not be comparable."""
        self.of(problem).finals = finals
        self._append("retimed", [lean(m) for m in finals], problem)

    def checked(self, problem: GemmProblem, check: Check) -> None:
        """A check whose process was lost is a fact of its own, so that a run that goes on makes it again."""
        facts = self.of(problem)
        (facts.unchecked if check.lost else facts.checks)[check.config] = check
        self._append("unchecked" if check.lost else "checked", dataclasses.asdict(check), problem)

    def won(self, winner: Winner) -> None:
        """Record the end of a problem."""
        self.of(winner.problem).winner = winner
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

    @abstractmethod
    def _append(self, fact: str, value: Any, problem: GemmProblem | None = None, *, decides: bool = False) -> None:
        """Keep one fact. One that decides a problem is on disk before anybody is told the result."""


class Journal(Facts):
    """Append-only facts of one run; safe to use from several threads of one process.

    `header` says what the facts depend on (versions, device, space, budget). Opening a journal with
    another header raises UnusableJournal with the differences. A last line that was cut short by a kill is
    dropped; damage anywhere else raises UnusableJournal: each line ends with its own checksum.
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._header = {"schema": SCHEMA, **header}
        self._lock = threading.Lock()
        length = self._read(self._header) if self.path.exists() else 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab")  # noqa: SIM115  open for the life of the run
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
            self._write([*lines, journal_line("started", {**vars(start), "problems": numbers})])

    def close(self) -> None:
        # What could not be written was reported when it was tried; closing only tries again.
        with contextlib.suppress(OSError):
            self._file.close()

    def take_over(self, lines: bytes, *, decides: bool) -> None:
        """Write whole lines that a JournalCopy sent."""
        with self._lock:
            self._write([lines], sync=decides)

    def _append(self, fact: str, value: Any, problem: GemmProblem | None = None, *, decides: bool = False) -> None:
        with self._lock:
            lines: list[bytes] = []
            number = None if problem is None else self._number(problem, lines)
            self._write([*lines, journal_line(fact, value, number)], sync=decides)

    def _number(self, problem: GemmProblem, lines: list[bytes]) -> int:
        """The number of the problem; a line that introduces it is added to `lines` when it has none yet."""
        if problem not in self._numbers:
            self._numbers[problem] = len(self._numbers)
            lines.append(journal_line("problem", dataclasses.asdict(problem)))
        return self._numbers[problem]

    def _write(self, lines: Sequence[bytes], *, sync: bool = False) -> None:
        with self._full_disk_is_said():
            self._file.write(b"".join(lines))
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def _full_disk_is_said(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"cannot write the journal {self.path}: {error.strerror}; free space, then run again"
            ) from None


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What differs, by name; of mappings only what differs in them."""
    differences = []
    for name in sorted(set(found) | set(expected)):
        was, now = found.get(name), expected.get(name)
        if name in _NOT_ALWAYS_KNOWN and None in (was, now):
            continue
        if name == "devices":
            differences += _device_differences(was or {}, now or {})
        elif isinstance(was, dict) and isinstance(now, dict):
            differences += _differences(was, now)
        elif was != now and name == "space":
            # A digest says nothing to a person.
            differences.append("the search space was another")
        elif was != now:
            differences.append(f"{name} was {was!r}, is {now!r}")
    return differences


def _device_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """How the clocks of a device differ from those of every device before: others of the same clocks may go on."""
    differences = []
    for index, clocks in expected.items():
        if found and all(_differences(known, clocks) for known in found.values()):
            before = found.get(index, next(iter(found.values())))
            differences += [f"{difference} on device {index}" for difference in _differences(before, clocks)]
    return differences
