"""`Recorder`: writes results and candidates as sizes finish, and prints how each ended and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from genkern.cli.candidates_file import CandidatesFile
from genkern.cli.pace import Pace
from genkern.cli.report import detail_lines, lost_line, outcome_text, size_line, size_values, winners_table
from genkern.cli.time_left import TimeLeft, duration_text
from genkern.compile.farm import FarmCounts
from genkern.errors import ProfilerError
from genkern.files.results import ResultsFile
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.journal.bug_log import BugLog
from genkern.result.result import Result
from genkern.screen import columns_of, is_json, put
from genkern.tuning.progress import ProgressFile
from genkern.tuning.tune import Report


class Recorder:
    """Keeps the results file up to date.

    The file is rewritten when at least `batch` winners are not in it yet and `pace` allows a write, and at the end. A
    stream is written at the end only. `failed` counts sizes without a winner; `bugs` counts sizes that failed due to a
    bug in genkern.
    """

    def __init__(
        self,
        problems: Sequence[GemmProblem],
        results: ResultsFile,
        candidates: CandidatesFile | None,
        console: Console,
        bug_log: BugLog,
        *,
        batch: int = 1,
        verbose: bool = False,
        pace: Pace | None = None,
        errors: bool = False,
        progress_file: ProgressFile | None = None,
    ) -> None:
        """Start recording.

        problems: the sizes to come, in the order of the results; several devices finish them in another order
        errors: whether the table of winners shows the error figures
        progress_file: is told each finished size
        """
        self._place = {problem: place for place, problem in enumerate(problems)}
        self._results = results
        self._candidates = candidates
        self._console = console
        self._bug_log = bug_log
        self._batch = batch
        self._verbose = verbose
        self._pace = pace or Pace()
        self._errors = errors
        self._progress_file = progress_file
        self._winners: list[Result] = []
        self._outcomes: Counter[Outcome] = Counter()
        self._unwritten = 0
        self._time_source = ""
        self._unchecked: list[str] = []
        self._left = TimeLeft(problems)
        self.failed = self.bugs = 0

    def finished(self, report: Report) -> None:
        """Record one size. Raises OutputError if a file cannot be written."""
        # Before the results: once a size is in the results it is not tuned again, so its candidates would be lost.
        if self._candidates is not None:
            self._candidates.append(report)
        self._outcomes += report.outcomes
        self._time_source = report.time_source or self._time_source
        if report.winner is None:
            self.failed += 1
        else:
            if report.unchecked:
                self._unchecked.append(report.problem.size)
            self._winners.append(report.winner)
            self._unwritten += 1
        if self._progress_file is not None:
            ended = "" if report.winner is not None else report.message or "no winner"
            self._progress_file.ended(report.problem.size, report.problem.name, ended)
        if report.bug is not None:
            self.bugs += 1
            self._console.print(self._bug_log.append(report.problem.size, report.bug))
        else:
            put(self._console, "size", size_values(report), [size_line(report)])
        for warning in report.warnings:
            self._console.print(f"{report.problem.size}: warning: {warning}")
        if self._verbose:
            for line in detail_lines(report):
                self._console.print(line)
        if (estimate := self._left.finished(report.problem)) is not None:
            line = f"{estimate.done} of {estimate.sizes} sizes, about {duration_text(estimate.left_s)} left"
            put(self._console, "progress", asdict(estimate), [line])
        if self._unwritten >= self._batch and self._pace.due and not self._results.is_stream:
            self.flush()

    def lost(self, device_index: int, error: ProfilerError, left: int) -> None:
        """Print that a device is used no more, and why."""
        self._console.print(lost_line(device_index, error, left))

    def flush(self) -> None:
        """Write results that are not written yet. Raises OutputError."""
        if self._unwritten:
            with self._pace.writing():
                self._winners.sort(key=lambda winner: self._place[winner.problem])
                self._results.write(self._winners)
            self._unwritten = 0

    def summary(self, gpu: Gpu, counts: FarmCounts | None) -> None:
        """Print the table of winners and the outcomes of all candidates; `counts` is None if nothing was compiled."""
        if is_json(self._console):
            outcomes = {outcome.said_of(self._time_source): count for outcome, count in self._outcomes.items()}
            values = {"winners": len(self._winners), "failed": self.failed, "bugs": self.bugs, "candidates": outcomes}
            put(self._console, "summary", {**values, "results": self._results.path if self._winners else None}, ())
            return
        if self._winners:
            table = winners_table(self._winners, gpu, columns_of(self._console), errors=self._errors)
            print_lines(self._console, ["", *table, ""])
        self._console.print(f"candidates: {outcome_text(self._outcomes, self._time_source) or 'none'}")
        if counts is not None:
            self._console.print(
                f"binaries: {counts.compiled:,} compiled, {counts.cached:,} from the cache, {counts.failed:,} refused"
            )
        if self._winners:
            self._console.print(f"results: {self._results.path}")
        if any(winner.check and winner.check.method == "interpreter" for winner in self._winners):
            self._console.print("check: under Triton's interpreter, on the reduced sizes named above")
        if self._unchecked:
            count = f"{len(self._unchecked)} of {len(self._winners)}"
            self._console.print(f"{count} winners were not checked here: {', '.join(self._unchecked)}")
        if stand_ins := sorted({w.check.stand_in for w in self._winners if w.check and w.check.stand_in}):
            self._console.print(f"check: with operands in {', '.join(stand_ins)}, instead of the type of these sizes")


def print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line)
