"""The facts of a run, as records, and how they are read from a journal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genkern.decoding import Whole, decode
from genkern.errors import InputError, ResultsError
from genkern.file_io import regular_bytes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Outcome, Unfit
from genkern.journal.batch import codes_of, measurements_of, restored, unfit_of
from genkern.journal.binaries import JournalBinary, binaries_of
from genkern.journal.header import SCHEMA, OldJournal, UnusableJournal, differences, header_of_today, other_version
from genkern.journal.journal_line import checksums, entry_of, require_whole, unsealed_header
from genkern.journal.search_steps import SearchRecord, parse_search
from genkern.kernels.cute.user_families import ENVIRONMENT
from genkern.result.journal_values import result_of
from genkern.result.result import Result
from genkern.timing.libraries import OURS, library_of

# Beginnings of the lines about single configs, which are nearly all of a journal.
_OF_CONFIGS = tuple(
    b'{"fact":"%b"' % fact for fact in (b"coded", b"screened", b"unfit", b"searched", b"made", b"retimed", b"confirmed")
)
# A line of this kind is stored unparsed.
_SEARCH = re.compile(rb'\{"fact":"searched","problem":([0-9]+),')


@dataclass(frozen=True)
class Start:
    """One start of a run.

    problems: the problems to tune, in order
    command: the command line
    folder: its current folder
    host, pid: host name and process id
    time_s: `time.time()`
    generator: digest of what genkern generates (genkern.journal.header); "" if unknown
    """

    problems: tuple[GemmProblem, ...]
    command: str
    folder: str
    host: str
    pid: Whole
    time_s: float
    generator: str = ""


@dataclass(frozen=True)
class Begun:
    """A device has begun a problem: configs that pruning left, number of the device, and when (`time.time()`)."""

    configs: Whole
    device_index: Whole
    time_s: float


@dataclass(frozen=True)
class Compiled:
    """All binaries that the search of a problem ordered are available.

    `binaries` counts those that were compiled or cached, `failed` the others; `cached` counts the results of both kinds
    that came from the cache.

    In a continued run, configs that were unfit before are not counted.
    """

    binaries: Whole
    failed: Whole
    cached: Whole


@dataclass(frozen=True)
class Ended:
    """How a problem ended.

    outcomes: number of configs by outcome
    message: why there is no winner, or ""
    time_s: when (`time.time()`); None in journals of genkern 0.2
    stage_s: wall-clock seconds of each stage, in the order in which they began; pruning precedes `Begun`
    """

    outcomes: dict[Outcome, Whole]
    message: str
    time_s: float | None = None
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass
class ProblemFacts:
    """Facts about one problem.

    unfit: configs that never became candidates, by name, except copies of others
    screened: measurements of the screening, by name
    made: binary of each unit by the name of the unit's first config, from all starts
    search: the line with the last start's search, if that search ended; it has thousands of steps and is rarely needed
        (`searched`)
    finals: measurements of the finals
    confirmed: measurements of the confirmation
    checks: checks by name
    unchecked: checks whose process was lost; a record only, without consequences
    rows: comparisons of rows to the bit, by name
    sums: order in which a library call of the finals adds along K; "" if it is not the order of any config
    codes: digest of the code (`CandidateBuilder.code_of`) that the facts about a config refer to
    winner: the winner
    begun, compiled, ended: facts of the last start
    """

    unfit: dict[str, Unfit] = field(default_factory=dict)
    screened: dict[str, Measurement] = field(default_factory=dict)
    made: dict[str, JournalBinary] = field(default_factory=dict)
    search: bytes = b""
    finals: list[Measurement] = field(default_factory=list)
    confirmed: list[Measurement] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    unchecked: dict[str, Check] = field(default_factory=dict)
    rows: dict[str, Check] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    winner: Result | None = None
    begun: Begun | None = None
    compiled: Compiled | None = None
    ended: Ended | None = None

    @property
    def configs(self) -> list[str]:
        """Configs with facts that a continued run does not determine again."""
        names = dict.fromkeys([*self.screened, *self.unfit, *self.checks, *(final.config for final in self.finals)])
        names |= {self.winner.config_name: None} if self.winner is not None else {}
        return [name for name in names if library_of(name) in OURS]

    def forget(self, configs: Collection[str]) -> None:
        """Remove the facts about these configs, whose generated code has changed.

        A winner among them is removed too. If there is no winner then, finals and a confirmation in which one of these
        configs took part are removed as a whole.
        """
        for known in (self.screened, self.unfit, self.checks, self.unchecked, self.rows, self.codes):
            for config in configs:
                known.pop(config, None)
        if self.winner is not None and self.winner.config_name in configs:
            self.winner = None
        if self.winner is None and any(final.config in configs for final in (*self.finals, *self.confirmed)):
            # The remaining measurements would not be comparable with new ones.
            self.finals, self.confirmed = [], []

    @property
    def searched(self) -> SearchRecord | None:
        """The steps of the search, for a journal that was read from a file.

        Raises ValueError, LookupError, TypeError or AttributeError if they are malformed.
        """
        return parse_search(entry_of(self.search)["value"], self.screened) if self.search else None


class JournalFacts:
    """The facts of a journal. `read_journal` reads one that a run may be writing at the same time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header: Mapping[str, Any] = {}
        self.starts: list[Start] = []
        self.facts: dict[GemmProblem, ProblemFacts] = {}
        # A problem is written once; later facts refer to it by its number.
        self._numbers: dict[GemmProblem, int] = {}
        # Checksum of the last line; None if lines do not contain the checksum of the line before, as in earlier
        # releases.
        self._checksum: int | None = 0
        self.wins = NeighbourWins()
        # True if code is generated as at the start of the run. Then facts without a code digest refer to current code.
        self.is_generated_alike = True

    def of(self, problem: GemmProblem) -> ProblemFacts:
        return self.facts.setdefault(problem, ProblemFacts())

    @property
    def numbers(self) -> dict[GemmProblem, int]:
        """Numbers by which lines refer to problems."""
        return dict(self._numbers)

    def winners(self) -> list[Result]:
        """Return the winners so far."""
        return [facts.winner for facts in list(self.facts.values()) if facts.winner is not None]

    def _read(self, expected: Mapping[str, Any] | None, left_out: tuple[bytes, ...] = ()) -> int:
        """Read the journal and return the length in bytes of its complete lines.

        Lines that begin with one of `left_out` are skipped.
        """
        data = regular_bytes(self.path)
        whole = data[: data.rfind(b"\n") + 1]
        problems: list[GemmProblem] = []
        self._checksum, chained = 0, True
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                if number == 1 and (version := other_version(unsealed_header(line))):
                    # Lines of another version may have another format, or other names of configs.
                    raise OldJournal(
                        f"{self.path} is of another version of genkern ({version})",
                        ": the same command starts anew and keeps that file",
                    )
                before, own = checksums(line)
                if number == 1:
                    chained = before is not None
                if before != (self._checksum if chained else None):
                    raise ValueError("the line before it has changed")
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
                    problems.append(decode(GemmProblem, entry["value"]))
                elif entry["fact"] == "started":
                    value = entry["value"]
                    of_start = [problems[number] for number in value["problems"]]
                    self._note_start(decode(Start, {**value, "problems": of_start}))
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

    def _note_winner(self, winner: Result) -> None:
        self.of(winner.problem).winner = winner
        self.wins.add(winner.problem, winner.config_name)

    def _take(self, fact: str, value: Any, problem: GemmProblem) -> None:
        facts = self.of(problem)
        if fact == "screened":
            facts.screened |= {measurement.config: measurement for measurement in measurements_of(value)}
        elif fact == "unfit":
            facts.unfit |= unfit_of(value)
        elif fact == "made":
            facts.made |= binaries_of(value)
        elif fact == "compiled":
            facts.compiled = decode(Compiled, value)
        elif fact == "retimed":
            facts.finals = measurements_of(value)
        elif fact == "confirmed":
            facts.confirmed = measurements_of(value)
        elif fact == "checked":
            facts.checks |= _by_config(value)
        elif fact == "unchecked":
            facts.unchecked |= _by_config(value)
        elif fact == "rows":
            facts.rows |= _by_config(value)
        elif fact == "summed":
            facts.sums |= {str(call): str(order) for call, order in value.items()}
        elif fact == "won":
            try:
                Config.parse(value["config"])
            except InputError as error:
                # The file is intact: the config has a parameter that no family here declares.
                advice = f"; set {ENVIRONMENT} to the files of the families (--family) that the run had"
                raise UnusableJournal(f"{self.path}: {error}", advice) from None
            self._note_winner(result_of(value, problem))
        elif fact == "began":
            facts.begun = decode(Begun, value)
        elif fact == "ended":
            facts.ended = decode(Ended, value)
        elif fact == "coded":
            facts.codes |= codes_of(value)
        elif fact == "outdated":
            facts.forget(restored(value))
        elif fact == "retracted":
            for config in value:
                facts.screened.pop(config, None)
        elif fact != "searched":
            # A "searched" fact needs no action here: `_read` stores its line.
            raise ValueError(fact)


def _by_config(value: Mapping[str, Any]) -> dict[str, Check]:
    check = decode(Check, dict(value))
    return {check.config: check}


def read_ends(path: str | Path) -> JournalFacts:
    """Read a journal as `read_journal` does, without facts about single configs.

    These facts suffice to know what a long run was to do and how it ended.
    """
    facts = JournalFacts(path)
    facts._read(None, _OF_CONFIGS)
    return facts


def read_journal(path: str | Path) -> JournalFacts:
    """Read the journal of any run. It is not modified and may be growing.

    Raises FileNotFoundError, and ResultsError for damage and for a journal of another schema.
    """
    facts = JournalFacts(path)
    facts._read(None)
    return facts


_Group = tuple[str, GemmProblem]


class NeighbourWins:
    """The winners so far. Neighbours of a problem differ from it only in M, or only in N and K."""

    def __init__(self) -> None:
        self._names: dict[GemmProblem, str] = {}
        self._wins: Counter[tuple[_Group, str]] = Counter()

    def add(self, problem: GemmProblem, name: str) -> None:
        """Count the config of this name as the winner of a problem; it replaces an earlier one."""
        before, self._names[problem] = self._names.get(problem), name
        for group in _groups(problem):
            if before is not None:
                self._wins[group, before] -= 1
            self._wins[group, name] += 1

    def of(self, problem: GemmProblem, configs: Iterable[str]) -> dict[str, int]:
        """Return for each of these configs the number of neighbours of `problem`, without itself, that it has won."""
        own, groups = self._names.get(problem), _groups(problem)
        return {name: sum(self._wins[group, name] - (name == own) for group in groups) for name in configs}


def _groups(problem: GemmProblem) -> tuple[_Group, _Group]:
    """Return the keys of both groups of neighbours. Only the problem itself belongs to both."""
    return ("weights", replace(problem, M=1)), ("tokens", replace(problem, N=1, K=1))
