"""The state of a run as text, from its journal and the holder of its lock (`genkern status RUN`)."""

from __future__ import annotations

import argparse
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.cli.report import format_text, outcome_text
from genkern.cli.time_left import duration_text
from genkern.errors import ResultsError
from genkern.file_io import read_text, shown_path
from genkern.files.file_kind import kind_of
from genkern.files.gemm_entry import GemmDefaults
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.facts import JournalFacts, ProblemFacts, read_journal
from genkern.journal.file_lock import is_held
from genkern.journal.header import OldJournal
from genkern.journal.run_files import RunFiles, find_runs
from genkern.result.result import Result
from genkern.screen import columns_of, fitted, is_json, put, put_table
from genkern.timing.libraries import OURS, library_of

_NUMBERS = ("screened", "us")


class State(str, Enum):
    """The state of a run. A run with an unfinished journal and a lock that is not held was stopped, or died."""

    GOING_ON = "going on"
    STOPPED = "not going on: stopped, or died"
    FINISHED = "finished"
    UNKNOWN = "this file system does not show whether it is going on"


@dataclass(frozen=True)
class RunStatus:
    """One run at one moment. `facts` is None if there is no journal yet; `idle_s` is the age of its last fact."""

    results: str
    state: State
    facts: JournalFacts | None
    idle_s: float
    now_s: float


@dataclass(frozen=True)
class SizeStatus:
    """One size of a run.

    state: its state, in words
    screened: number of screened configs
    configs: number of configs; None if unknown
    best: the best measurement so far
    outcomes: what became of the configs, as text
    """

    problem: GemmProblem
    state: str
    screened: int = 0
    configs: int | None = None
    best: Measurement | None = None
    outcomes: str = ""


def parse_status(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern status`. Raises InputError; SystemExit(0) after printing for --help."""
    return status_parser().parse_args(argv)


def status_parser() -> argparse.ArgumentParser:
    """Return the parser; its help is the reference of `genkern status`."""
    p = Parser(
        prog="genkern status",
        description="Show how far a run is, and whether it is going on. Reads its journal, changes nothing. The exit\n"
        "status is 1 if a run is not going on and has sizes without a result, 2 if there is no run.",
    )
    group = p.add_argument_group("what to show")
    group.add_argument(
        "run",
        nargs="?",
        default="output",
        metavar="RUN",
        help="a results file (-o), its journal, or a folder with results files (default: output)",
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def status_lines(status: RunStatus, columns: int | None = None) -> list[str]:
    """Return the text for one run: its state, a table of its sizes in at most `columns`, and what to do next."""
    name = shown_path(status.results)
    if status.facts is None:
        return [f"{name}: {status.state.value}; nothing is recorded yet"]
    sizes = size_statuses(status)
    done = sum(size.state in ("done", "no winner") for size in sizes)
    lines = [f"{name}: {status.state.value}{_since(status)}", *fitted(_table(sizes), _NUMBERS, columns)]
    lines.append(f"{done} of {len(sizes)} sizes done; the last fact is {duration_text(status.idle_s)} old")
    return lines + _advice(status, sizes)


def _put_status(status: RunStatus, console: Console) -> None:
    """Print one run; with --json a record of the run, then one of each size."""
    if not is_json(console):
        console.print("\n".join(status_lines(status, columns_of(console))))
        return
    sizes = size_statuses(status) if status.facts is not None else []
    done = sum(size.state in ("done", "no winner") for size in sizes)
    values = {"results": status.results, "state": status.state.value, "sizes": len(sizes), "done": done}
    put(console, "run", {**values, "idle_s": status.idle_s}, ())
    put_table(console, "size", _table(sizes), _NUMBERS)


def size_statuses(status: RunStatus) -> list[SizeStatus]:
    """Return the sizes of the run's last start, and sizes of earlier starts that have a winner, in their order."""
    facts = status.facts
    assert facts is not None
    wanted = dict.fromkeys(problem for start in facts.starts for problem in start.problems)
    wanted |= dict.fromkeys(facts.facts)
    last = set(facts.starts[-1].problems if facts.starts else wanted)
    known = {problem: facts.facts.get(problem, ProblemFacts()) for problem in wanted}
    return [
        _size_status(problem, entry, status)
        for problem, entry in known.items()
        if problem in last or entry.winner is not None
    ]


def _size_status(problem: GemmProblem, facts: ProblemFacts, status: RunStatus) -> SizeStatus:
    configs = facts.begun.configs if facts.begun else None
    outcomes = Counter(measurement.outcome for measurement in facts.screened.values())
    outcomes.update(unfit.outcome for unfit in facts.unfit.values())
    finals = [final for final in facts.finals if library_of(final.config) in OURS]
    measured = [m for m in finals or facts.screened.values() if m.duration_us is not None]
    best = min(measured, key=lambda m: m.duration_us or 0.0, default=None)
    if (winner := facts.winner) is not None:
        best = Measurement(winner.config_name, Outcome.MEASURED, winner.time_source, "final", winner.duration_us)
    if facts.ended is not None:
        outcomes = Counter(facts.ended.outcomes)
    source = str(status.facts.header.get("time_source", "")) if status.facts else ""
    if winner is not None:
        state = "done"
    elif facts.ended is not None:
        state, best = "no winner", None
    elif facts.begun is not None and status.state is not State.STOPPED:
        state = f"in flight {duration_text(status.now_s - facts.begun.time_s)}{'' if facts.compiled else ', compiling'}"
    else:
        state = "begun" if facts.begun or facts.screened else "not begun"
    return SizeStatus(problem, state, len(facts.screened), configs, best, outcome_text(outcomes, source))


def _since(status: RunStatus) -> str:
    assert status.facts is not None
    if status.state is not State.GOING_ON or not status.facts.starts:
        return ""
    start = status.facts.starts[-1]
    return f" for {duration_text(status.now_s - start.time_s)} (process {start.pid} on {start.host})"


def _table(sizes: Sequence[SizeStatus]) -> list[list[str]]:
    """Return the rows of the table of sizes, the header first; formats are named if the sizes have several."""
    several = len({format_text(size.problem) for size in sizes}) > 1
    rows = [["size", "state", "screened", "us", "source", "best so far", "candidates"]]
    for size in sizes:
        best = size.best
        total = f" of {size.configs:,}" if size.configs is not None else ""
        rows.append(
            [
                size.problem.size + (f" {format_text(size.problem)}" if several else ""),
                size.state,
                f"{size.screened:,}{total}" if size.screened or total else "",
                f"{best.duration_us:.2f}" if best and best.duration_us is not None else "",
                f"{best.time_source}{', screened once' if best.stage == 'screen' else ''}" if best else "",
                best.config if best else "",
                size.outcomes,
            ]
        )
    return rows


def _advice(status: RunStatus, sizes: Sequence[SizeStatus]) -> list[str]:
    assert status.facts is not None
    if status.state is State.FINISHED:
        if any(size.state == "no winner" for size in sizes):
            return ["Sizes without a winner are tried again by the same command; --profile_file says what went wrong."]
        return [f"Nothing to do: the results are in {shown_path(status.results)}."]
    start = status.facts.starts[-1] if status.facts.starts else None
    if status.state is State.GOING_ON:
        return ["Nothing to do: it goes on. If it is stopped, the same command goes on from here."]
    if start is None:
        return ["Run the same command again to go on."]
    return ["Run the same command again to go on:", f"  cd {shlex.quote(start.folder)} && {start.command}"]


def run_status(options: argparse.Namespace, console: Console) -> int:
    """Print the state of the runs that `options.run` names, or the contents of results without a journal.

    Returns 1 if one of the runs has sizes without a result and is not going on, else 0. Raises ResultsError if there
    are neither runs nor results, or one is damaged.
    """
    path: str = options.run
    if Path(path).is_file() and not RunFiles.named_by(path).known:
        _put_results(path, console)
        return 0
    found = 0
    for number, run in enumerate(find_runs(path)):
        if number and not is_json(console):
            console.print()
        found = max(found, int(_put_run(run, console)))
    return found


def _put_results(path: str, console: Console, journal: str = "; no journal is beside it") -> None:
    """Print the contents of a results file. Raises ResultsError if it is none."""
    if is_json(console):
        put_table(console, "size", [HEAD, *results_rows(path)], NUMBERS)
    else:
        console.print("\n".join(results_lines(path, journal, columns_of(console))))


def _put_run(run: RunFiles, console: Console) -> bool:
    """Print a run, and return whether it is not going on although sizes are left.

    If another version of genkern wrote its journal, its results are printed. Raises ResultsError if there are none, or
    the journal is damaged.
    """
    try:
        status = read_status(run)
    except OldJournal as error:
        if not Path(run.results).is_file():
            raise
        console.print(error.reason)
        _put_results(run.results, console, "")
        return False
    _put_status(status, console)
    return is_abandoned(status)


def is_abandoned(status: RunStatus) -> bool:
    """Return True if a run is not going on and has sizes without a result: it was stopped, died, or found no winner."""
    if status.state not in (State.STOPPED, State.FINISHED):
        return False
    return status.facts is None or any(size.state != "done" for size in size_statuses(status))


def read_status(run: RunFiles) -> RunStatus:
    """Return the present state of one run. Nothing is written, and a running run is not delayed."""
    # The lock is read first: a run that ends after this has moved its journal, and is found finished.
    held = is_held(run.lock)
    states = {True: State.GOING_ON, False: State.STOPPED, None: State.UNKNOWN}
    for path, state in ((run.journal, states[held]), (run.finished_journal, State.FINISHED)):
        try:
            facts, written_s = read_journal(path), path.stat().st_mtime
        except FileNotFoundError:
            continue
        if state is State.FINISHED and held:
            break  # a new run, whose journal does not exist yet
        now_s = time.time()
        return RunStatus(run.results, state, facts, now_s - written_s, now_s)
    return RunStatus(run.results, states[held], None, 0.0, time.time())


HEAD = ["size", "format", "us", "source", "device", "Triton", "config"]
NUMBERS = ("us",)


def results_rows(path: str) -> list[list[str]]:
    """Return a row of times, sources, devices and configs for each size. Raises ResultsError if `path` is not a results
    file."""
    # An empty file counts as results without rows, as it does for a run.
    text = read_text(path, ResultsError)
    found = kind_of(path).read_rows(text, shown_path(path), GemmDefaults()) if text.strip() else ()
    return [_cells(row) for row in found]


def results_lines(path: str, journal: str = "; no journal is beside it", columns: int | None = None) -> list[str]:
    """Return the number of sizes and when the file was written, then the table of `results_rows` in at most `columns`.

    `journal` ends the first line. Raises ResultsError if `path` is not a results file.
    """
    rows = results_rows(path)
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(Path(path).stat().st_mtime))
    sizes = f"{len(rows)} size{'' if len(rows) == 1 else 's'}"
    return [
        f"{shown_path(path)}: results of {sizes}, written {written}{journal}",
        *(fitted([HEAD, *rows], NUMBERS, columns) if rows else []),
    ]


def _cells(row: Result) -> list[str]:
    units = f"{row.compute_units} compute units" if row.compute_units else ""
    device = ", ".join(part for part in (row.device or row.arch, units) if part)
    us = "" if row.duration_us is None else f"{row.duration_us:.2f}"
    # tune_gemm's rows have no source; genkern's CSV rows only have "measured" or "predicted".
    source = row.time_source or (row.library if row.config is None else "")
    return [
        row.problem.size,
        format_text(row.problem),
        us,
        source,
        device,
        row.version_of("triton") or "",
        row.config_name,
    ]
