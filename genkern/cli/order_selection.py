"""--batch_invariant: chooses one order of sums for the winners of all sizes that differ only in M.

A first pass finds each size's winner in any order. genkern.tuning.invariant.group then names the orders that are worth
trying. For each of these a further pass tunes the sizes whose winner has another order, and compares rows bit by bit.
Finally an order is chosen per group, and all rows of the group are replaced at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from genkern.cli.report import detail_lines, invariant_table, lost_line, size_line, size_values
from genkern.cli.setting import Setting
from genkern.cli.tuning_pass import TuningPass
from genkern.errors import ProfilerError, ResultsError
from genkern.files.results import ResultsFile
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.journal.bug_log import BugLog
from genkern.journal.facts import ProblemFacts, read_journal
from genkern.journal.journal import Journal
from genkern.journal.run_files import RunFiles
from genkern.kernels.catalogue import sums_of
from genkern.result.result import Result
from genkern.screen import columns_of, put
from genkern.space.space import Space
from genkern.timing.libraries import VENDOR
from genkern.tuning.invariant.group import LIBRARY, MOST, Chosen, Group, choice, contenders, groups_of
from genkern.tuning.invariant.reference import slower
from genkern.tuning.invariant.sum_order_constraint import SumOrderConstraint
from genkern.tuning.tune import Report


@dataclass(frozen=True)
class Groups:
    """The groups of a run.

    done: groups whose rows in the results file all have the same order of sums (none with --all)
    left: the other groups, whose order is to be chosen

    A group also contains M that are not asked for, if the file has batch-invariant rows for them: a newly chosen order
    applies to these rows too.
    """

    done: tuple[Group, ...]
    left: tuple[Group, ...]

    @classmethod
    def of(cls, problems: Sequence[GemmProblem], results: ResultsFile, *, anew: bool) -> Groups:
        """Return the groups of the problems; with `anew` (--all) none is done."""
        orders = {row.problem: row.sums for row in results.rows if row.batch_invariant}
        listed = {replace(problem, M=1) for problem in problems}
        more = [problem for problem in orders if replace(problem, M=1) in listed and problem not in problems]
        found = groups_of([*problems, *more])
        done = (
            []
            if anew
            else [group for group in found if len({orders.get(problem, "") for problem in group} - {""}) == 1]
        )
        done = [group for group in done if all(problem in orders for problem in group)]
        return cls(tuple(done), tuple(group for group in found if group not in done))

    @property
    def problems(self) -> list[GemmProblem]:
        """The problems of the groups that are left."""
        return [problem for group in self.left for problem in group]


@dataclass
class _OpenGroup:
    """A group whose order is not chosen yet.

    group: its problems
    orders: the orders that have not been tried yet
    library: the order of the library's call for the largest M; "" if unknown
    found: winners of the orders that were tried
    chosen: the chosen order with its winners; None until it is chosen
    """

    group: Group
    orders: list[str]
    library: str = ""
    found: dict[str, dict[GemmProblem, Result]] = field(default_factory=dict)
    chosen: Chosen | None = None


class OrderSelection:
    """The further passes of a --batch_invariant run, on groups of sizes that each have a winner in some order."""

    def __init__(
        self, setting: Setting, spaces: Mapping[str, Space], files: RunFiles, results: ResultsFile, console: Console
    ) -> None:
        """`results` has the winners in any order; the winners of groups are written to it."""
        self._setting, self._spaces, self._files = setting, spaces, files
        self._results = results
        self._console = console
        self._arch = setting.target.arch
        self._weights: Mapping[int, float] = setting.options.m_weights or {}
        self._kind: str = setting.options.sums
        self._rows = {row.problem: row for row in results.rows if row.config is not None}
        self._sought: list[_OpenGroup] = []
        self._asked: dict[GemmProblem, str] = {}
        self._in_flight: dict[GemmProblem, _OpenGroup] = {}
        self._goes_on = self.is_unfinished(files)
        self.bugs = self.failed = 0

    @staticmethod
    def is_unfinished(files: RunFiles) -> bool:
        """Return True if a run was stopped in one of these passes, so that the first pass is done."""
        return any(files.of_order(number).journal.exists() for number in range(1, MOST + 1))

    def choose(self, groups: Sequence[Group]) -> int:
        """Choose an order for each group; returns the exit status."""
        facts = self._facts()
        for group in groups:
            if missing := [problem.size for problem in group if problem not in self._rows]:
                self._console.print(f"{_name(group)}: no order for all M: {', '.join(missing)} has no winner")
                self.failed += 1
                continue
            self._sought.append(self._begun(group, facts))
        for further in () if self._goes_on else range(1, MOST + 1):
            # Left by an earlier run; a run that is resumed would take finished passes for its own.
            self._files.of_order(further).finished_journal.unlink(missing_ok=True)
        number = 0
        while under_way := [sought for sought in self._sought if sought.chosen is None and sought.orders]:
            number += 1
            self._pass(number, under_way, facts)
        winners = [winner for sought in self._sought if sought.chosen for winner in sought.chosen.winners.values()]
        if winners:
            table = invariant_table(winners, self._setting.target.gpu, columns_of(self._console))
            put(self._console, "orders", {"winners": len(winners)}, ["", *table, ""])
            self._console.print(f"results: {self._results.path}")
        return 3 if self.bugs else 1 if self.failed else 0

    def finished(self, report: Report) -> None:
        """Record the report on one size of a pass."""
        problem = report.problem
        sought, order = self._in_flight[problem], self._asked[problem]
        if report.bug is not None:
            self.bugs += 1
            log = BugLog(RunFiles(self._results.path).bug_log, self._setting.versions, self._setting.options.command)
            self._console.print(log.append(problem.size, report.bug))
        else:
            values = {**size_values(report), "order": order}
            put(self._console, "size", values, [f"{size_line(report)} ({order})"])
            for line in detail_lines(report) if self._setting.options.verbose else ():
                self._console.print(line)
        if report.winner is not None:
            sought.found[order][problem] = report.winner
        # The library's order is that of its call for the largest M, whose kernels it also uses for other large M.
        if problem == sought.group[-1] and not sought.library:
            sought.library = report.sums.get(VENDOR, "")
        del self._in_flight[problem]
        if not any(other is sought for other in self._in_flight.values()):
            self._tried(sought)

    def lost(self, device_index: int, error: ProfilerError, left: int) -> None:
        """Print that a device is used no more."""
        self._console.print(lost_line(device_index, error, left))

    def flush(self) -> None:
        """Do nothing: groups are written when they are chosen."""

    def _begun(self, group: Group, facts: Mapping[GemmProblem, ProblemFacts]) -> _OpenGroup:
        known = {problem: self._known(problem, facts.get(problem)) for problem in group}
        last = facts.get(group[-1])
        library = last.sums.get(VENDOR, "") if last is not None else ""
        orders = contenders(known, self._weights, library, self._slower)
        if self._kind == LIBRARY and library:
            orders = [library]
        if not orders:
            self._console.print(f"{_name(group)}: no order for all M: no measured kernel has one")
            self.failed += 1
        return _OpenGroup(group, orders, library)

    def _slower(self, problem: GemmProblem, order: str) -> float:
        best = self._rows[problem].config
        assert best is not None
        return slower(problem, order, best, self._setting.target.gpu)

    def _known(self, problem: GemmProblem, facts: ProblemFacts | None) -> dict[str, float]:
        """Return the best time in microseconds of each order, from the first pass's screening and the results row."""
        row = self._rows[problem]
        times = [(row.config, row.duration_us)]
        if facts is not None:
            measured = (m for m in facts.screened.values() if m.outcome is Outcome.MEASURED)
            times += [(Config.parse(m.config), m.duration_us) for m in measured]
        found: dict[str, float] = {}
        for config, us in times:
            if config is not None and us is not None:
                order = sums_of(problem, config, self._arch)
                found[order] = min(us, found.get(order, us))
        return found

    def _facts(self) -> Mapping[GemmProblem, ProblemFacts]:
        """Return the facts of the first pass; empty if its journal is missing or cannot be read."""
        with contextlib.suppress(ResultsError, FileNotFoundError):
            return read_journal(self._files.finished_journal).facts
        return {}

    def _pass(self, number: int, under_way: Sequence[_OpenGroup], facts: Mapping[GemmProblem, ProblemFacts]) -> None:
        """Tune the groups, each in the next of its orders."""
        asked = {problem: sought.orders[0] for sought in under_way for problem in sought.group}
        for sought in under_way:
            order = sought.orders.pop(0)
            sought.found[order] = {}
            self._in_flight |= dict.fromkeys(sought.group, sought)
        self._asked = asked
        configs = {problem: config for problem in asked if (config := self._rows[problem].config) is not None}
        decided = {p for p, config in configs.items() if sums_of(p, config, self._arch) == asked[p]}
        found = {
            problem: best
            for problem, order in asked.items()
            if problem not in decided and (best := self._best(problem, order, facts.get(problem))) is not None
        }
        orders = SumOrderConstraint(asked, frozenset(decided), found)
        said = {
            "order_pass": number,
            "sums": self._kind,
            "m_weights": [[*pair] for pair in sorted(self._weights.items())],
        }
        files = self._files.of_order(number)
        if self._goes_on and not files.journal.exists() and files.finished_journal.exists():
            # A later pass was stopped: the journal of this finished one is read again.
            os.replace(files.finished_journal, files.journal)
        what = self._setting, self._spaces, files, self._console, configs, orders, said
        work = TuningPass(*what, opened=self._forget_others)
        work.tune(list(asked), self)

    def _best(self, problem: GemmProblem, order: str, facts: ProblemFacts | None) -> Config | None:
        """Return the fastest measured config that sums in this order; None if there is none."""
        measured = () if facts is None else facts.screened.values()
        times = sorted(
            (m.duration_us, m.config) for m in measured if m.outcome is Outcome.MEASURED and m.duration_us is not None
        )
        named = (Config.parse(name) for _, name in times)
        return next((config for config in named if sums_of(problem, config, self._arch) == order), None)

    def _forget_others(self, journal: Journal) -> None:
        """Drop winners of another order, which an earlier start with other orders chose; measurements stay."""
        for problem, order in self._asked.items():
            facts = journal.of(problem)
            if facts.winner is not None and sums_of(problem, facts.winner.known_config, self._arch) != order:
                facts.winner, facts.finals, facts.confirmed = None, [], []

    def _tried(self, sought: _OpenGroup) -> None:
        """Choose the order of a group if no order is left to try.

        With --sums library none is left once the library's order was tried.
        """
        if self._kind == LIBRARY and sought.library in sought.found:
            sought.orders.clear()
        if sought.orders:
            return
        how = {"library": sought.library, "kind": self._kind}
        chosen = choice(sought.group, sought.found, self._weights, **how)
        if isinstance(chosen, str):
            self._console.print(f"{_name(sought.group)}: {chosen}")
            self.failed += 1
            return
        sought.chosen = chosen
        every = (each.chosen for each in self._sought)
        self._results.write([winner for one in every if one is not None for winner in one.winners.values()])


def _name(group: Group) -> str:
    """Return a group's name, such as `M = 1, 16 by 4096x4096`."""
    return f"M = {', '.join(str(problem.M) for problem in group)} by {group[0].N}x{group[0].K}"
