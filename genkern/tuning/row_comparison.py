"""Comparison of rows bit by bit: whether a config has its order of sums, and which orders library calls have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.candidate_builder import ProblemBuild
from genkern.gemm.records import CONFIG_WINS, Check, Measurement
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import FactWriter
from genkern.search.select import faster_choice
from genkern.timing.libraries import OURS, library_of
from genkern.timing.session import Budget
from genkern.tuning.checkers import RowChecker
from genkern.tuning.confirmation import ConfirmationRound
from genkern.tuning.invariant.sum_order_constraint import SumOrderConstraint, fastest_by_order, loss


@dataclass(frozen=True)
class RowComparisons:
    """The comparisons of a run on one device. If `rows` is None, nothing can be compared."""

    rows: RowChecker | None
    orders: SumOrderConstraint
    journal: FactWriter
    arch: str

    def check(
        self, build: ProblemBuild, facts: ProblemFacts, name: str, build_environment: BuildEnvironment
    ) -> Check | None:
        """Check that a config's rows have the bits of its order in all calls.

        A result in the journal is used again. Return None if no order is required, or if the config cannot be compared.
        """
        problem = build.session.problem
        if self.rows is None or problem not in self.orders.required:
            return None
        if (check := facts.rows.get(name)) is None and name in build.ready:
            reference = self.orders.reference(problem, name, build.ready, build_environment.gpu)
            check = self.rows.check(build.session, name, build.ready[name], reference)
            if not check.lost:
                self.journal.add_row_check(problem, check)
        return check

    def sums_of_calls(
        self, build: ProblemBuild, facts: ProblemFacts, measured: Iterable[Measurement]
    ) -> dict[str, str]:
        """Return the order of sums of each library call in the finals.

        The value is "" if the call has none of the orders that it is compared with (`fastest_by_order`). Calls that
        cannot be compared are left out.
        """
        calls = [m.config for m in facts.finals if library_of(m.config) not in OURS and m.duration_us is not None]
        new = [call for call in calls if call not in facts.sums]
        if self.rows is not None and new:
            of_order = fastest_by_order(build.session.problem, measured, build.ready, self.arch)
            orders = {candidate.name: order for order, candidate in of_order.items()}
            alike = self.rows.alike(build.session, new, list(of_order.values()))
            found = {call: orders.get(alike.get(call, ""), "") for call in new}
            self.journal.add_sums(build.session.problem, found)
        return facts.sums

    def chosen(
        self, confirmation: ConfirmationRound, facts: ProblemFacts, build: ProblemBuild, budget: Budget
    ) -> tuple[str, float | None]:
        """Return the choice (config, vendor or tie), and the loss by the required order (None if none is required)."""
        problem, vendor = build.session.problem, confirmation.vendor
        who = faster_choice(confirmation.winner, vendor, budget)
        if problem not in self.orders.required:
            return who, None
        if vendor is None or not self.orders.may_win_call(problem, vendor.config, facts.sums):
            who = CONFIG_WINS
        return who, loss(confirmation.winner if who == CONFIG_WINS else vendor, confirmation)


def with_rows(check: Check | None, facts: ProblemFacts, name: str) -> Check | None:
    """Return a config's check with the result of comparing its rows added."""
    if check is None or (rows := facts.rows.get(name)) is None:
        return check
    return replace(check, rounds=(*check.rounds, *rows.rounds), row_bits=rows.row_bits)
