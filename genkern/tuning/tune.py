"""Tuning, from a problem to its winner. Start with `Tuner._tuned`, which calls the steps in their order."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.candidate_builder import CandidateBuilder, ProblemBuild
from genkern.errors import BugError, ProfilerError, reporting_bugs
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import (
    NOT_CHECKED,
    PREDICTED,
    Binary,
    Candidate,
    Check,
    Measurement,
    Outcome,
    Unfit,
    code_digest,
)
from genkern.journal.facts import Begun, Compiled, Ended, ProblemFacts
from genkern.journal.journal import FactWriter
from genkern.result.result import Proof, Result
from genkern.search.guided.predicted_times import predicted_times
from genkern.search.limit import NO_LIMIT, Limit
from genkern.search.select import (
    families_without_times,
    finalists,
    interval_us,
    library_calls,
    no_winner_reason,
    ranking,
    semifinalists,
    spread_us,
)
from genkern.search.strategies import ChosenStrategy, chosen_strategy
from genkern.search.strategy import Lost
from genkern.space.prune import Pruned
from genkern.space.space import Space
from genkern.timing.libraries import OURS, TORCH, VENDOR, call_name, library_of
from genkern.timing.profiler import Profiler
from genkern.timing.session import Budget
from genkern.timing.trust_rank import SHARED
from genkern.tuning.checkers import Checker
from genkern.tuning.confirmation import ConfirmationRound, confirm
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint
from genkern.tuning.peer_timings import kept_times
from genkern.tuning.preparation import Preparation, PreparationQueue, PreparedProblem
from genkern.tuning.progress import Progress
from genkern.tuning.row_comparison import RowComparisons, with_rows
from genkern.tuning.search_driver import NOTHING_SAID, Confidence, SearchDriver

_LOSSES = (Outcome.CRASHED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Provenance:
    """The origin that every winner of a run records.

    arch, device: the GPU
    versions: name and version of the driver and of each package
    shared: True if another program used the GPU at the same time
    """

    arch: str
    device: str
    versions: tuple[tuple[str, str], ...]
    shared: bool = False


@dataclass
class Report:
    """How one problem ended.

    winner: None if there is none; `message` then says why
    outcomes: number of candidates by outcome
    pruned: the legal configs that the rules left, and the number of dropped configs by reason
    candidates: the last measurement of each candidate, by config name
    binaries: compiled kernels, by name
    stage_s: wall-clock seconds of each stage
    incumbent: measurement of the config that the results file had for the problem before
    vendor: measurement of the library's best call, in the finals or, if there is a winner, in the confirmation
    torch: the same for PyTorch's own call
    sums: the order in which each library call adds up K, by call name
    table: the candidates as text, if the report comes from another process (`candidates_file.condensed`)
    confidence: how much of the space was searched
    unchecked: why a winner that should have been checked was not
    bug: the bug in genkern that ended the size, if one did
    warnings: lines for the user
    """

    problem: GemmProblem
    winner: Result | None = None
    message: str = ""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    pruned: Pruned | None = None
    candidates: dict[str, Measurement] = field(default_factory=dict)
    binaries: dict[str, Binary] = field(default_factory=dict)
    stage_s: dict[str, float] = field(default_factory=dict)
    incumbent: Measurement | None = None
    vendor: Measurement | None = None
    torch: Measurement | None = None
    sums: dict[str, str] = field(default_factory=dict)
    table: str | None = None
    confidence: Confidence = NOTHING_SAID
    unchecked: str = ""
    bug: BugError | None = None
    warnings: tuple[str, ...] = ()

    @property
    def time_source(self) -> str:
        """The source of the winner's or the candidates' times; "" if there are no candidates."""
        known = (m.time_source for m in ([self.winner] if self.winner else self.candidates.values()))
        return next(known, "")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the wall-clock time of the block to `stage_s[name]`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.stage_s[name] = self.stage_s.get(name, 0.0) + time.monotonic() - started


def _ended(report: Report) -> Ended:
    seconds = {name: round(stage_s, 3) for name, stage_s in report.stage_s.items()}
    return Ended(dict(report.outcomes), report.message, round(time.time(), 3), seconds)


@dataclass(frozen=True)
class Tuner:
    """Tunes problems on one device. Tuners of several devices share build environment, journal and progress.

    spaces: returns the space of a format
    checker: checks outputs; None: no check
    strategy: decides which candidates are compiled and measured, and when to stop; None: the default strategy
    limit: ends a search
    incumbents: winners of earlier runs. Each legal one is measured again and is a finalist, even if the space does not
        contain it: tuning again then does not lose a better config, and both are compared under the same conditions
    check_all: check every finalist, not only the winner and the runner-up
    ahead: the next problems, which are being prepared
    orders: the order of sums that winners must have; rows of such winners are compared bit by bit
    """

    spaces: Callable[[str], Space]
    build_environment: BuildEnvironment
    profiler: Profiler
    checker: Checker | None
    journal: FactWriter
    progress: Progress
    provenance: Provenance
    budget: Budget
    strategy: ChosenStrategy | None = None
    limit: Limit = NO_LIMIT
    device_index: int = 0
    incumbents: Mapping[GemmProblem, Config] = field(default_factory=dict)
    check_all: bool = False
    preparations: PreparationQueue = field(default_factory=PreparationQueue)
    orders: SumOrderConstraint = ANY_ORDER

    def tune(self, problem: GemmProblem, may_prepare: Callable[[], object] = lambda: None) -> Report:
        """Prune, compile, screen, time the finals, check and choose; return the report.

        Facts that an earlier start of the run wrote to the journal are used instead of being measured again.
        `may_prepare` is called once the first binaries are ordered: from then on the next problem can be prepared.
        A bug in genkern ends only this size, and is in the report. Raises GenkernError if the run cannot continue (a
        full disk, a broken device).
        """
        try:
            with reporting_bugs():
                return self._tuned(problem, may_prepare)
        except BugError as bug:
            report = Report(problem, message=f"a bug in genkern: {bug}", bug=bug)
            self.journal.add_end(problem, _ended(report))
            return report

    def prepare(self, problem: GemmProblem) -> None:
        """Prune the problem and order its first binaries in a thread. `tune` raises the error if this fails."""
        self.preparations.begin(problem, functools.partial(self._prepared, problem, behind=True))

    def forget(self, problem: GemmProblem) -> None:
        """Give up preparing a problem, which another tuner took over."""
        self.preparations.forget(problem)

    def close(self) -> None:
        """Give up all prepared problems, and wait until their resources are freed."""
        self.preparations.forget(wait=True)

    def _prepared(self, problem: GemmProblem, *, behind: bool) -> PreparedProblem:
        strategy = self.strategy or chosen_strategy()
        how = self.budget, strategy, self.limit, self.device_index, self.orders
        preparation = Preparation(self.build_environment, self.journal, *how)
        return preparation.of(problem, self.spaces(problem.op), self.incumbents.get(problem), behind=behind)

    def _tuned(self, problem: GemmProblem, may_prepare: Callable[[], object]) -> Report:
        report, facts = Report(problem), self.journal.of(problem)
        with report.stage("prune"):
            prepared = self.preparations.take(problem) or self._prepared(problem, behind=False)
        with contextlib.closing(prepared):
            report.pruned, incumbent = prepared.pruned, prepared.incumbent
            report.outcomes[Outcome.ILLEGAL] = sum(report.pruned.illegal.values())
            report.outcomes[Outcome.PRUNED] = sum(report.pruned.dropped.values())
            if why := prepared.illegal:
                name = self.incumbents[problem].name
                report.incumbent = Measurement(name, Outcome.ILLEGAL, self.profiler.time_source, message=why)
                report.candidates[name] = report.incumbent
            if (builder := prepared.builder) is None or (search := prepared.search) is None:
                report.outcomes.update(m.outcome for m in report.candidates.values())
                report.message = "no config of the space suits this size (--explain shows the rules)"
                self.journal.add_end(problem, _ended(report))
                return report
            builder.set_background(background=False)
            may_prepare()
            bar = self.progress.problem(problem.size, len(prepared.configs), self.build_environment.farm.counts)
            self.journal.add_begun(problem, Begun(len(prepared.configs), self.device_index, round(time.time(), 3)))
            with report.stage("compile and screen"), bar as advance:
                for measurement in self._screen(builder, search, facts):
                    report.candidates[measurement.config] = measurement
                    advance(1)
            report.binaries = builder.build.binaries
            report.confidence = search.confidence
            winner = self._choose(builder.build, facts, report)
            if winner is not None and winner.config_name in builder.build.ready:
                winner = replace(winner, source=builder.source_of(winner.known_config))
            if winner is not None:
                times = kept_times(problem, facts.screened.values(), report.candidates, self.build_environment.gpu)
                winner = replace(winner, peer_us=times)
            report.winner = winner
            for name, found in report.candidates.items():
                if found.outcome is Outcome.WRONG:
                    search.tell(Lost(Config.parse(name), found.outcome))
        if facts.winner is not None:
            # An earlier run chose this winner and may have written it to a results file that is in use. Today's choice
            # could differ, because wins of neighbouring sizes break ties.
            report.winner = facts.winner
        if incumbent is not None and report.incumbent is None:
            report.incumbent = report.candidates[incumbent.name]
        report.outcomes.update(m.outcome for m in report.candidates.values())
        report.warnings = tuple(families_without_times(report.candidates.values()))
        if report.winner is not None:
            self.journal.add_winner(report.winner)
        self.journal.add_end(problem, _ended(report))
        return report

    def _screen(self, builder: CandidateBuilder, search: SearchDriver, facts: ProblemFacts) -> Iterator[Measurement]:
        """Yield each candidate's first measurement, from the journal if it is known there.

        For configs that are not measured (left out, refused by the compiler), yield a Measurement without a time.
        """
        problem, build = builder.build.session.problem, builder.build
        known = dict(facts.screened)
        search.on_made = lambda: self.journal.add_compiled(problem, Compiled(*builder.counts))
        in_a_row: list[str] = []
        try:
            for measurement in search.measurements(self.profiler):
                self.journal.add_screened(problem, measurement, builder.code_of(Config.parse(measurement.config)))
                in_a_row = [*in_a_row, measurement.config] if measurement.outcome in _LOSSES else []
                yield measurement
        except ProfilerError:
            # The first lost config may have broken the device, so its loss stands. The configs after it ran on a broken
            # device, so their losses are taken back.
            self.journal.add_retraction(problem, in_a_row[1:])
            raise
        self.journal.add_search(problem, search.searched())
        self.journal.add_binaries(problem, search.made)
        build.unfit |= {name: unfit for name, unfit in search.left_out().items() if name not in build.unfit}
        yield from (measurement for name, measurement in known.items() if name in build.ready)
        for name, unfit in build.unfit.items():
            yield Measurement(name, unfit.outcome, self.profiler.time_source, message=unfit.message)

    def _choose(self, build: ProblemBuild, facts: ProblemFacts, report: Report) -> Result | None:
        """Time the best candidates again, then return the first one of the ranking whose output is right.

        Return None, and set the report's message, if there is none.
        """
        incumbent = self.incumbents.get(build.session.problem)
        if not facts.finals:
            with contextlib.ExitStack() as alone:
                with report.stage("wait for its turn"):
                    alone.enter_context(self.profiler.alone())
                with report.stage("re-time"):
                    # Thousands of candidates have no time.
                    able = [m for m in report.candidates.values() if m.outcome is Outcome.MEASURED]
                    finals = self._finals(build, able, incumbent)
            if finals is None:
                report.message = "no candidate could be measured (--profile_file says why)"
                return None
            self.journal.add_retimed(build.session.problem, finals)
        for final in facts.finals:
            if final.config in report.candidates:
                report.candidates[final.config] = final
        report.torch = next((m for m in facts.finals if m.config == VENDOR), None)
        with report.stage("check"):
            report.sums = self._comparing.sums_of_calls(build, facts, report.candidates.values())
        report.vendor = vendor = self._vendor(build, facts, report)
        ours = [m for m in facts.finals if library_of(m.config) in OURS]
        contenders = [m for m in ours if self._may_win(build, m)]
        wins = self.journal.wins.of(build.session.problem, [m.config for m in contenders])
        for final in ranking(contenders, vendor, wins) if self.check_all else ():
            if not self._passes(build, facts, report, final):
                contenders.remove(final)
        while ranked := ranking(contenders, vendor, wins):
            if self._passes(build, facts, report, ranked[0]):
                runner_up = self._runner_up(build, facts, report, ranked[1:])
                before = report.candidates.get(incumbent.name) if incumbent else None
                fastest = self.orders.fastest(build.session.problem, library_calls(facts.finals, self.budget))
                chosen = ConfirmationRound(ranked[0], runner_up, vendor, report.torch, before, fastest)
                with report.stage("confirm"):
                    again = confirm(self.profiler, self.journal, build, facts, chosen)
                if again.is_measured:
                    report.vendor, report.torch, report.incumbent = again.vendor, again.torch, again.incumbent
                    if self.checker is not None and not self.checker.can_check(Config.parse(again.winner.config)):
                        report.unchecked = f"needs a {self.provenance.arch} GPU"
                    return self._winner(build, again, facts, report)
                report.candidates[again.winner.config] = again.winner
            contenders.remove(ranked[0])
        report.message = no_winner_reason(report.candidates)
        return None

    def _finals(
        self, build: ProblemBuild, able: Collection[Measurement], incumbent: Config | None
    ) -> list[Measurement] | None:
        """Time the best of the candidates `able` to win, and the incumbent, in the finals; None if `able` is empty."""
        names = semifinalists(able, self.budget.finalists)
        if len(names) > self.budget.finalists:
            ready = [build.ready[name] for name in names]
            names = self.profiler.semifinal(build.session, ready, self.budget.finalists)
        if incumbent is not None:
            names += finalists((m for m in able if m.config == incumbent.name and m.config not in names), 1)
        return self.profiler.retime(build.session, [build.ready[name] for name in names]) if names else None

    def _may_win(self, build: ProblemBuild, final: Measurement) -> bool:
        return self.orders.may_win(build.session.problem, final.config, self.provenance.arch)

    @property
    def _comparing(self) -> RowComparisons:
        rows = None if self.checker is None else self.checker.rows
        return RowComparisons(rows, self.orders, self.journal, self.provenance.arch)

    def _runner_up(
        self, build: ProblemBuild, facts: ProblemFacts, report: Report, others: Sequence[Measurement]
    ) -> Measurement | None:
        """Return the fastest of the other contenders. If checks are quick, skip contenders that the check finds wrong.

        A wrong runner-up would make the winner's margin meaningless. The ranking cannot be used as it is: contenders
        that are tied with the winner are not sorted by time there.
        """
        for other in sorted(others, key=lambda m: m.duration_us or 0.0):
            if self.checker is None or not self.checker.quick or self._passes(build, facts, report, other):
                return other
        return None

    def _vendor(self, build: ProblemBuild, facts: ProblemFacts, report: Report) -> Measurement | None:
        """Return the first library call whose output is right; None if there is none.

        Calls that have a required order of sums come first, then faster ones; calls without a time come last. PyTorch's
        own call is not checked, since all programs use it; an algorithm that genkern found is checked.
        """
        calls = library_calls(facts.finals, self.budget)
        for call in self.orders.calls(build.session.problem, calls, facts.sums):
            if library_of(call.config) == TORCH or self.checker is None:
                return call
            with report.stage("check"):
                if (check := facts.checks.get(call.config)) is None:
                    check = self.checker.check_call(build.session, call.config)
                    self.journal.add_check(build.session.problem, check)
            if check.passed:
                return call
        return None

    def _passes(self, build: ProblemBuild, facts: ProblemFacts, report: Report, final: Measurement) -> bool:
        """Return True if a finalist passes the check or cannot be checked; otherwise record its outcome."""
        with report.stage("check"):
            check = self._check(build, facts, final.config)
            if check is not None and check.passed:
                check = self._comparing.check(build, facts, final.config, self.build_environment) or check
        if check is None or check.passed:
            return True
        if final.config in report.candidates:
            outcome = check.lost or Outcome.WRONG
            report.candidates[final.config] = Measurement(
                final.config, outcome, final.time_source, "final", final.duration_us, message=wrong_text(check)
            )
        return False

    def _check(self, build: ProblemBuild, facts: ProblemFacts, name: str) -> Check | None:
        if self.checker is None or not self.checker.can_check(Config.parse(name)):
            return None
        if (check := facts.checks.get(name)) is None:
            if name not in build.ready:
                # An earlier run timed the config, and this run has no binary of it, so it cannot win. The journal gets
                # no fact, because nothing is known about its output.
                unfit = build.unfit.get(name, Unfit(Outcome.NOT_SEEN, "it is no config of this size any more"))
                why = f"timed before, but not checked: {unfit.message}"
                return Check(name, False, 1.0, math.inf, "", NOT_CHECKED, why, unfit.outcome)
            check = self.checker.check(build.session, build.ready[name])
            self.journal.add_check(build.session.problem, check)
        return check

    def _winner(
        self, build: ProblemBuild, confirmation: ConfirmationRound, facts: ProblemFacts, report: Report
    ) -> Result:
        final, runner_up, vendor, torch = (
            confirmation.winner,
            confirmation.runner_up,
            confirmation.vendor,
            confirmation.torch,
        )
        assert final.duration_us is not None
        chosen, cost = self._comparing.chosen(confirmation, facts, build, self.budget)
        config, predicted = Config.parse(final.config), None
        if final.time_source == PREDICTED:
            predicted = predicted_times(build.session.problem, [config], self.build_environment.gpu)[0].interval_us
        return Result(
            problem=build.session.problem,
            config=config,
            duration_us=final.duration_us,
            spread_us=spread_us(final.samples_us),
            samples=len(final.samples_us),
            time_source=final.time_source + SHARED * self.provenance.shared,
            arch=self.provenance.arch,
            device=self.provenance.device,
            versions=self.provenance.versions,
            check=Proof.of(with_rows(facts.checks.get(final.config), facts, final.config)),
            vendor_us=vendor.duration_us if vendor else None,
            runner_up=runner_up.config if runner_up else "",
            runner_up_us=runner_up.duration_us if runner_up else None,
            interval_us=interval_us(final),
            vendor_interval_us=interval_us(vendor) if vendor else None,
            discarded=final.discarded,
            choice=chosen,
            vendor=call_name(vendor.config) if vendor and vendor.duration_us is not None else "",
            torch_us=torch.duration_us if torch else None,
            code=code_digest(_codes(build.ready[final.config])) if final.config in build.ready else "",
            expected_loss=report.confidence.expected_loss,
            searched_share=report.confidence.searched_share,
            vendor_sums=facts.sums.get(vendor.config, "") if vendor else "",
            invariant_loss=cost,
            predicted_interval_us=predicted,
        )


def wrong_text(check: Check) -> str:
    """Return the reason why a check failed."""
    return check.message or f"error ratio {check.error_ratio:.3g}, worst row {check.worst_row_error:.3g}"


def _codes(candidate: Candidate) -> list[str | None]:
    return [binary.resources.code_sha256 for binary in candidate.binaries]
