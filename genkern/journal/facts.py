"""What a journal says: the facts of a run, as records, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genkern.errors import InputError, ResultsError
from genkern.files import regular_bytes
from genkern.gemm.config import name_today
from genkern.gemm.former_names import is_gone
from genkern.gemm.neighbour_wins import NeighbourWins
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Outcome, Unfit, Winner, require_types
from genkern.journal.batch import codes_of, measurements_of, restored, unfit_of
from genkern.journal.header import SCHEMA, OldJournal, UnusableJournal, differences, header_of_today
from genkern.journal.line import check_of, checksums, entry_of, require_whole, unsealed_header, winner_of
from genkern.journal.made import MadeBinary, made_of
from genkern.journal.searched import Searched, searched_of
from genkern.kernels.cute.own import ENVIRONMENT
from genkern.timing.libraries import OURS, library_of

# How the lines begin that are nearly all of a journal.
_OF_CONFIGS = tuple(
    b'{"fact":"%b"' % fact for fact in (b"coded", b"screened", b"unfit", b"searched", b"made", b"retimed", b"confirmed")
)
# One of them is taken as it stands.
_SEARCH = re.compile(rb'\{"fact":"searched","problem":([0-9]+),')


@dataclass(frozen=True)
class Start:
    """One start of a run: what it was to tune, in its order, and by which command in which folder.

    `time_s` is `time.time()`, `generator` that of genkern.journal.header then, "" where nobody said it.
    """

    problems: tuple[GemmProblem, ...]
    command: str
    folder: str
    host: str
    pid: int
    time_s: float
    generator: str = ""


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
    `made` has the binary of each unit, by the name of the unit's first config, of what the last starts had made.
    `rows` are comparisons of rows to the bit, by config, and `sums` say, by a library's call among the finals, in which
    order it adds up K, "" where that is no order of a config here. `finals` chose, and `confirmed` are the rounds that
    say how fast the chosen one is.
    `search` is the line that says how the last start searched that came to the end of it: thousands of steps, which few
    ask for (`searched`). `codes` say, by config, of which code all of this is (`Bench.code_of`). `unchecked` are checks
    whose process was lost: no more than a record, for nothing follows from them.
    """

    unfit: dict[str, Unfit] = field(default_factory=dict)
    screened: dict[str, Measurement] = field(default_factory=dict)
    made: dict[str, MadeBinary] = field(default_factory=dict)
    search: bytes = b""
    finals: list[Measurement] = field(default_factory=list)
    confirmed: list[Measurement] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    unchecked: dict[str, Check] = field(default_factory=dict)
    rows: dict[str, Check] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    winner: Winner | None = None
    begun: Begun | None = None
    compiled: Compiled | None = None
    ended: Ended | None = None

    @property
    def configs(self) -> list[str]:
        """The configs of which something is known that a run that goes on does not find out again."""
        names = dict.fromkeys([*self.screened, *self.unfit, *self.checks, *(final.config for final in self.finals)])
        names |= {self.winner.config.name: None} if self.winner is not None else {}
        return [name for name in names if library_of(name) in OURS]

    def forget(self, configs: Collection[str]) -> None:
        """Forget what was found of these configs: they are of other code now. A winner that is not stands."""
        for known in (self.screened, self.unfit, self.checks, self.unchecked, self.rows, self.codes):
            for config in configs:
                known.pop(config, None)
        if self.winner is not None and self.winner.config.name in configs:
            self.winner = None
        if self.winner is None and any(final.config in configs for final in (*self.finals, *self.confirmed)):
            # Half of them would not be comparable.
            self.finals, self.confirmed = [], []

    @property
    def searched(self) -> Searched | None:
        """The steps of the search, of a journal that was read. Raises ValueError, LookupError, TypeError or
        AttributeError where they have no sense."""
        return searched_of(entry_of(self.search)["value"], self.screened) if self.search else None


class JournalFacts:
    """What a journal says; `read_journal` reads one that a run may be writing at the same time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header: Mapping[str, Any] = {}
        self.starts: list[Start] = []
        self.facts: dict[GemmProblem, ProblemFacts] = {}
        # A problem is written once; the facts that follow refer to it by its place among the problems.
        self._numbers: dict[GemmProblem, int] = {}
        # Of the last line; None where lines do not say what stands before them, as earlier releases wrote them.
        self._checksum: int | None = 0
        self.wins = NeighbourWins()
        # Whether all code is generated as when the run began: then facts that do not say of which they are, are of it.
        self.is_generated_alike = True

    def of(self, problem: GemmProblem) -> ProblemFacts:
        return self.facts.setdefault(problem, ProblemFacts())

    @property
    def numbers(self) -> dict[GemmProblem, int]:
        """The numbers by which lines refer to problems."""
        return dict(self._numbers)

    def winners(self) -> list[Winner]:
        """The winners so far, of every problem that this journal knows."""
        return [facts.winner for facts in list(self.facts.values()) if facts.winner is not None]

    def _read(self, expected: Mapping[str, Any] | None, left_out: tuple[bytes, ...] = ()) -> int:
        """Take over what is there; returns the length in bytes of its whole lines. Those that so begin are left out."""
        data = regular_bytes(self.path)
        whole = data[: data.rfind(b"\n") + 1]
        problems: list[GemmProblem] = []
        self._checksum, chained = 0, True
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                if number == 1 and (schema := unsealed_header(line).get("schema", SCHEMA)) != SCHEMA:
                    # Lines of another version need not end as ours do.
                    raise OldJournal(
                        f"{self.path} is of another version of genkern (schema {schema}, here {SCHEMA})",
                        ": the same command begins anew, and keeps it",
                    )
                before, own = checksums(line)
                if number == 1:
                    chained = before is not None
                if before != (self._checksum if chained else None):
                    raise ValueError("another line stood before it")
                self._checksum = own
                if line.startswith(left_out):
                    continue
                if (search := _SEARCH.match(line)) is not None:
                    require_whole(line)
                    self.of(problems[int(search[1])]).search = line
                    continue
                entry = entry_of(line)
                if number == 1:
                    self._compare(entry["value"] if entry["fact"] == "header" else {}, expected)
                elif entry["fact"] == "problem":
                    problems.append(require_types(GemmProblem(**entry["value"])))
                elif entry["fact"] == "started":
                    value = entry["value"]
                    start = Start(**{**value, "problems": tuple(problems[n] for n in value["problems"])})
                    self._note_start(require_types(start))
                else:
                    self._take(entry["fact"], entry["value"], problems[entry["problem"]])
            except ResultsError:
                raise
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
                reason, advice = (
                    f"{self.path}, line {number}: damaged",
                    "; move the file away, or use --all to start anew",
                )
                raise UnusableJournal(reason, advice) from None
        self._numbers = {problem: number for number, problem in enumerate(problems)}
        if not chained:
            self._checksum = None
        return len(whole)

    def _compare(self, found: Mapping[str, Any], expected: Mapping[str, Any] | None) -> None:
        self.header = found
        if expected is not None:
            self.is_generated_alike = found.get("generator") == expected.get("generator")
        else:
            expected = {**found, "schema": SCHEMA}
        different = differences(header_of_today(found), header_of_today(expected))
        if different:
            raise UnusableJournal(
                f"{self.path} is of another run ({'; '.join(different)})",
                ": repeat its command (genkern status shows it), use --all to tune again, or another -o",
            )

    def _note_start(self, start: Start) -> None:
        self.starts.append(start)
        for facts in self.facts.values():
            facts.begun = facts.compiled = facts.ended = None

    def _note_winner(self, winner: Winner) -> None:
        self.of(winner.problem).winner = winner
        self.wins.add(winner)

    def _take(self, fact: str, value: Any, problem: GemmProblem) -> None:
        facts = self.of(problem)
        if fact == "screened":
            facts.screened |= {measurement.config: measurement for measurement in _of_today(value)}
        elif fact == "unfit":
            facts.unfit |= {name_today(name): unfit for name, unfit in unfit_of(value).items() if not is_gone(name)}
        elif fact == "made":
            facts.made |= made_of(value)
        elif fact == "compiled":
            facts.compiled = require_types(Compiled(**value))
        elif fact == "retimed":
            facts.finals = _of_today(value)
        elif fact == "confirmed":
            facts.confirmed = _of_today(value)
        elif fact == "checked":
            facts.checks |= _by_config(check_of(value))
        elif fact == "unchecked":
            facts.unchecked |= _by_config(check_of(value))
        elif fact == "rows":
            facts.rows |= _by_config(check_of(value))
        elif fact == "summed":
            facts.sums |= {str(call): str(order) for call, order in value.items()}
        elif fact == "won":
            if not is_gone(value["config"]):
                try:
                    self._note_winner(winner_of(value, problem))
                except InputError as error:
                    # Nothing is damaged: the name has a parameter that nobody has declared here.
                    advice = f"; set {ENVIRONMENT} to the files of the families (--family) that the run had"
                    raise UnusableJournal(f"{self.path}: {error}", advice) from None
        elif fact == "began":
            facts.begun = require_types(Begun(**value))
        elif fact == "ended":
            outcomes = {Outcome(name): n for name, n in value["outcomes"].items()}
            facts.ended = require_types(Ended(outcomes, value["message"]))
        elif fact == "coded":
            facts.codes |= codes_of(value)
        elif fact == "outdated":
            facts.forget([name_today(config) for config in restored(value)])
        elif fact == "retracted":
            for config in value:
                facts.screened.pop(name_today(config), None)
        elif fact != "searched":
            # What follows from that stands in other facts.
            raise ValueError(fact)


def _by_config(check: Check) -> dict[str, Check]:
    return {check.config: check}


def _of_today(value: Mapping[str, Any]) -> list[Measurement]:
    """By names of today, where a run of an earlier release had others; without families that are no more: their sizes
    are decided again.
    """
    found = []
    for measurement in measurements_of(value):
        name = name_today(measurement.config)
        if not is_gone(name):
            found.append(measurement if name == measurement.config else replace(measurement, config=name))
    return found


def read_ends(path: str | Path) -> JournalFacts:
    """As `read_journal`, without what was found of each config: for what a long run was to do and how that ended."""
    facts = JournalFacts(path)
    facts._read(None, _OF_CONFIGS)
    return facts


def read_journal(path: str | Path) -> JournalFacts:
    """The facts of any run's journal, which is only read and may be growing.

    Raises FileNotFoundError, and ResultsError for damage and for a journal of another schema.
    """
    facts = JournalFacts(path)
    facts._read(None)
    return facts
