"""Convert a run's journal to the rows of a recorded table: every measured or refused config of each problem."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from genkern.compile.binary_groups import binary_group, seen_of
from genkern.errors import ResultsError, one_line
from genkern.file_io import shown_path
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import PREDICTED, Measurement, Outcome
from genkern.journal.binaries import JournalBinary
from genkern.journal.facts import JournalFacts, ProblemFacts
from genkern.journal.journal_line import entry_of
from genkern.journal.search_steps import names_of, parse_search, parsed
from genkern.ops.fields import problem_cells
from genkern.recorded.columns import CONFIG, NEEDS
from genkern.timing.libraries import OURS, call_name, library_of

# Rows in columns: a value for each row, by column name.
Rows = dict[str, list[Any]]
_RUN_DIGITS = 8
# Absolute folders in a command are removed, since they mean nothing on another machine.
_FOLDERS = re.compile(r"(?<![^\s'\"=,])/(?:[^\s'\"/=,]+/)*")
# Keys of a journal's header that are stored as the run's versions.
_VERSIONS = ("genkern", "triton", "torch", "cute", "python", "driver")


@dataclass(frozen=True)
class ProblemRows:
    """The rows of one problem in one run.

    problem: the problem
    space: number of configs in its space; None if unknown
    whole: True if each of them has an outcome
    rows: the rows, without the columns that are equal for the whole problem
    """

    problem: GemmProblem
    space: int | None
    whole: bool
    rows: Rows

    @property
    def count(self) -> int:
        return len(self.rows["config"])


@dataclass(frozen=True)
class RecordedRun:
    """One run.

    name: derived from its journal, so it does not change
    provenance: where its facts come from, as JSON values
    problems: rows of each problem
    """

    name: str
    provenance: Mapping[str, Any]
    problems: tuple[ProblemRows, ...]


def run_of(journal: JournalFacts, commit: str = "") -> RecordedRun:
    """Return the rows of a journal. `commit`: the commit of the genkern that measured, if known.

    Raises ResultsError if nothing was measured, and for a journal with inconsistent facts.
    """
    header, starts = dict(journal.header), journal.starts
    if header.get("time_source") == PREDICTED:
        raise ResultsError(f"{shown_path(str(journal.path))}: its times are predicted: record a run with measurements")
    first = {"command": starts[0].command, "host": starts[0].host, "time_s": starts[0].time_s} if starts else {}
    name = hashlib.sha256(json.dumps([header, first], sort_keys=True).encode()).hexdigest()[:_RUN_DIGITS]
    problems = tuple(found for of in journal.facts.items() if (found := _rows_of(journal, *of)).count)
    if not problems:
        raise ResultsError(f"{shown_path(str(journal.path))}: nothing is measured yet: record it later")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(starts[0].time_s)) if starts else ""
    provenance = {
        "device": header.get("device", ""),
        "arch": header.get("arch", ""),
        "versions": {each: header[each] for each in _VERSIONS if each in header},
        "clocks": header.get("devices", {}),
        "commit": commit,
        "command": _FOLDERS.sub("", str(first.get("command", ""))),
        "date": started,
        "problems": len(problems),
        "header": header,
    }
    return RecordedRun(name, provenance, problems)


def _rows_of(journal: JournalFacts, problem: GemmProblem, facts: ProblemFacts) -> ProblemRows:
    try:
        return rows_of(problem, facts)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        where = f"{shown_path(str(journal.path))}, {problem.size}"
        raise ResultsError(f"{where}: its facts about the search are malformed ({one_line(error)[:120]})") from None


def rows_of(problem: GemmProblem, facts: ProblemFacts) -> ProblemRows:
    """Return the rows of one problem: configs of its space in their order, other configs, then library calls."""
    value = entry_of(facts.search)["value"] if facts.search else None
    space = dict.fromkeys(names_of(value) if value else ())
    finals = {call_name(final.config): final for final in facts.finals}
    # A finalist may have been retracted since.
    outcomes = {name: final.outcome for name, final in finals.items() if library_of(name) in OURS}
    outcomes |= {name: unfit.outcome for name, unfit in facts.unfit.items()}
    outcomes |= {name: measurement.outcome for name, measurement in facts.screened.items()}
    if value and not space.keys() <= outcomes.keys():
        # Only the search's steps mention copies of other configs. Retracted configs have no times, so their steps
        # cannot be read.
        refused: dict[str, Outcome] = {}
        with contextlib.suppress(ValueError, LookupError):
            refused = parse_search(value, facts.screened).refused
        outcomes = {name: outcomes.get(name) or refused[name] for name in {**outcomes, **refused}}
    known = {*space, *outcomes}
    calls = sorted(name for name in finals.keys() - known if library_of(name) not in OURS)
    names = [*(name for name in space if name in outcomes), *sorted(outcomes.keys() - space.keys()), *calls]
    binaries = {compiled(name): binary for name, binary in facts.made.items()}
    originals = _originals(outcomes, binaries)
    rows: Rows = {column.name: [] for column in (*CONFIG, *NEEDS)} | {"compile_s": []}
    for name in names:
        binary = binaries.get(compiled(name)) if name in outcomes else None
        of = {**_measured(facts.screened.get(name)), **_final(finals.get(name)), **_made(binary)}
        check = facts.checks.get(name)
        of |= {"config": name, "right": None if check is None else check.passed, "copy_of": originals.get(name)}
        of["outcome"] = outcomes[name].value if name in outcomes else of["final_outcome"]
        for column, values in rows.items():
            values.append(of.get(column))
    # A search that did not end leaves no record of the configs that it had not reached.
    whole = value is not None and space.keys() <= outcomes.keys()
    configs = len(known) if value else facts.begun.configs if facts.begun else None
    return ProblemRows(problem, configs, whole, rows)


def all_rows(run: RecordedRun) -> Iterator[tuple[dict[str, Any], ProblemRows]]:
    """Yield for each problem the columns that its rows share, and its rows."""
    of_run = {"run": run.name, "arch": run.provenance["arch"], "device": run.provenance["device"]}
    for found in run.problems:
        cells: dict[str, Any] = dict(problem_cells(found.problem))
        cells |= {key: int(cells[key]) for key in ("M", "N", "K")} | {"bias": found.problem.bias}
        yield {**cells, **of_run, "space": found.space, "whole": found.whole}, found


def _originals(outcomes: Mapping[str, Outcome], binaries: Mapping[Hashable, JournalBinary]) -> dict[str, str]:
    """Return for each copy a config with an equal launch and equal recorded resources, if there is one."""
    copies = [name for name, outcome in outcomes.items() if outcome is Outcome.IDENTICAL]
    if not copies:
        return {}

    def launch_of(name: str) -> Hashable:
        binary = binaries.get(compiled(name))
        return None if binary is None else (*seen_of(parsed(name)), binary.resources)

    tried = {launch_of(name): name for name, outcome in outcomes.items() if outcome is not Outcome.IDENTICAL}
    tried.pop(None, None)
    return {name: tried[launch] for name in copies if (launch := launch_of(name)) in tried}


@lru_cache(maxsize=2**17)
def compiled(name: str) -> Hashable:
    """Return a value that is equal for configs that share binaries."""
    return binary_group(parsed(name))


def _measured(measurement: Measurement | None) -> dict[str, Any]:
    if measurement is None:
        return {}
    us, samples_us = measurement.duration_us, list(measurement.samples_us)
    return {
        "screen_us": us,
        "samples_us": None if samples_us in ([], [us]) else samples_us,
        "took_ms": measurement.took_ms,
    }


def _final(final: Measurement | None) -> dict[str, Any]:
    if final is None:
        return {}
    return {
        "final_us": final.duration_us,
        "final_samples_us": list(final.samples_us) or None,
        "final_outcome": final.outcome.value,
        "usual_mhz": final.usual_mhz,
        "watts": final.watts,
    }


def _made(binary: JournalBinary | None) -> dict[str, Any]:
    if binary is None:
        return {}
    needs = {column.name: getattr(binary.resources, column.name) for column in NEEDS}
    return {"unit": binary.key, "compile_s": binary.compile_s, **needs}
