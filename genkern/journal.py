"""The journal of a run: one JSON line a fact, appended as it happens, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genkern.config import Config
from genkern.errors import OutputError, ResultsError
from genkern.problem import GemmProblem
from genkern.records import Check, Measurement, Outcome, Winner

SCHEMA = 2


@dataclass
class ProblemFacts:
    """What a journal knows of one problem."""

    screened: dict[str, Measurement] = field(default_factory=dict)
    finals: list[Measurement] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    winner: Winner | None = None


class Journal:
    """Append-only facts of one run; safe to use from several threads of one process.

    `header` says what the facts depend on (versions, device, space, budget). Opening a journal with
    another header raises ResultsError with the differences. A last line that was cut short by a kill is
    dropped; damage anywhere else raises ResultsError.
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any], *, start_anew: bool) -> None:
        self.path = Path(path)
        self._header = {"schema": SCHEMA, **header}
        self._lock = threading.Lock()
        self.facts: dict[GemmProblem, ProblemFacts] = {}
        # A problem is written once; the facts that follow refer to it by its place among the problems.
        self._numbers: dict[GemmProblem, int] = {}
        if start_anew and self.path.exists():
            os.replace(self.path, self.path.with_name(self.path.name + ".previous"))
        length = self._read() if self.path.exists() else 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab")  # noqa: SIM115  open for the life of the run
            self._file.truncate(length)
        except OSError as error:
            raise OutputError(f"cannot write the journal {self.path}: {error.strerror}; try another -o") from None
        if length == 0:
            self._append("header", self._header)

    def of(self, problem: GemmProblem) -> ProblemFacts:
        return self.facts.setdefault(problem, ProblemFacts())

    def winners(self) -> list[Winner]:
        """The winners so far, of every problem that this journal knows."""
        return [facts.winner for facts in list(self.facts.values()) if facts.winner is not None]

    def screened(self, problem: GemmProblem, measurement: Measurement) -> None:
        self.of(problem).screened[measurement.config] = measurement
        self._append("screened", _lean(measurement), problem)

    def retimed(self, problem: GemmProblem, finals: list[Measurement]) -> None:
        """All finals of a problem are one fact: half of them would not be comparable."""
        self.of(problem).finals = finals
        self._append("retimed", [_lean(m) for m in finals], problem)

    def checked(self, problem: GemmProblem, check: Check) -> None:
        self.of(problem).checks[check.config] = check
        self._append("checked", dataclasses.asdict(check), problem)

    def won(self, winner: Winner) -> None:
        """Record the end of a problem, on disk before this returns."""
        self.of(winner.problem).winner = winner
        values = {k: v for k, v in dataclasses.asdict(winner).items() if k != "problem"}
        self._append("won", {**values, "config": winner.config.name}, winner.problem)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        # What could not be written was reported when it was tried; closing only tries again.
        with contextlib.suppress(OSError):
            self._file.close()

    def _append(self, fact: str, value: Any, problem: GemmProblem | None = None) -> None:
        with self._lock:
            lines = []
            if problem is None:
                lines.append({"fact": fact, "value": value})
            else:
                if problem not in self._numbers:
                    self._numbers[problem] = len(self._numbers)
                    lines.append({"fact": "problem", "value": dataclasses.asdict(problem)})
                lines.append({"fact": fact, "problem": self._numbers[problem], "value": value})
            try:
                self._file.write(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
                self._file.flush()
            except OSError as error:
                raise OutputError(
                    f"cannot write the journal {self.path}: {error.strerror}; free space, then run again"
                ) from None

    def _read(self) -> int:
        """Take over what is there; returns the length in bytes of its whole lines."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        problems: list[GemmProblem] = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                if number == 1:
                    self._compare(entry["value"] if entry["fact"] == "header" else {})
                elif entry["fact"] == "problem":
                    problems.append(GemmProblem(**entry["value"]))
                else:
                    self._take(entry["fact"], entry["value"], problems[entry["problem"]])
            except ResultsError:
                raise
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ResultsError(
                    f"{self.path}, line {number}: damaged; move the file away, or use --all to start anew"
                ) from None
        self._numbers = {problem: number for number, problem in enumerate(problems)}
        return len(whole)

    def _compare(self, found: dict[str, Any]) -> None:
        differences = [
            f"{name} was {found.get(name)!r}, is {self._header.get(name)!r}"
            for name in sorted(set(found) | set(self._header))
            if found.get(name) != self._header.get(name)
        ]
        if differences:
            raise ResultsError(
                f"{self.path} is of another run ({'; '.join(differences)}): use --all to tune again, or another -o"
            )

    def _take(self, fact: str, value: Any, problem: GemmProblem) -> None:
        facts = self.of(problem)
        if fact == "screened":
            facts.screened[value["config"]] = _measurement(value)
        elif fact == "retimed":
            facts.finals = [_measurement(entry) for entry in value]
        elif fact == "checked":
            facts.checks[value["config"]] = Check(**value)
        elif fact == "won":
            facts.winner = _winner(value, problem)
        else:
            raise ValueError(fact)


def _lean(measurement: Measurement) -> dict[str, Any]:
    values = dataclasses.asdict(measurement)
    return {k: v for k, v in values.items() if v not in ("", None, (), 0)}


def _measurement(values: dict[str, Any]) -> Measurement:
    samples = tuple(values.pop("samples_us", ()))
    return Measurement(**{**values, "outcome": Outcome(values["outcome"])}, samples_us=samples)


def _winner(values: dict[str, Any], problem: GemmProblem) -> Winner:
    check = Check(**values["check"]) if values["check"] else None
    versions = tuple((str(k), str(v)) for k, v in values["versions"])
    config = Config.parse(values["config"])
    intervals = {name: _pair(values.get(name)) for name in ("interval_us", "vendor_interval_us")}
    return Winner(**{**values, **intervals, "problem": problem, "config": config, "check": check, "versions": versions})


def _pair(values: Any) -> tuple[float, float] | None:
    if values is None:
        return None
    low, high = values
    return float(low), float(high)
