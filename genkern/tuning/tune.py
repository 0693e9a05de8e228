"""Tuning, from a problem to its winner: read `Tuner.tune` from top to bottom."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from genkern.errors import BugError, ProfilerError, bugs_told
from genkern.farm.bench import Bench, Job
from genkern.farm.workshop import Workshop
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
    Winner,
    code_digest,
)
from genkern.journal.facts import Begun, Compiled, Ended, ProblemFacts
from genkern.journal.journal import Facts
from genkern.search.limit import NO_LIMIT, Limit
from genkern.search.predicted_times import predicted_times
from genkern.search.select import (
    barren_families,
    finalists,
    interval_us,
    library_calls,
    ranking,
    semifinalists,
    spread_us,
    without_winner,
)
from genkern.search.strategies import ChosenStrategy, chosen_strategy
from genkern.search.strategy import Lost
from genkern.space.prune import Pruned
from genkern.space.shares import Shares
from genkern.space.space import Space
from genkern.timing.libraries import OURS, TORCH, VENDOR, call_name, library_of
from genkern.timing.profiler import Profiler
from genkern.timing.session import Budget
from genkern.timing.standing import SHARED
from genkern.tuning.check import Checker
from genkern.tuning.compared import Compared, confirmed
from genkern.tuning.elsewhere import times_kept
from genkern.tuning.invariant.asked_orders import ANY_ORDER, Orders
from genkern.tuning.invariant.comparing import Comparing, with_rows
from genkern.tuning.prepared import Ahead, Preparation, Prepared
from genkern.tuning.processes.foresight import Foresight
from genkern.tuning.progress import Progress
from genkern.tuning.search import NOTHING_SAID, Confidence, Search

_LOSSES = (Outcome.CRASHED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Provenance:
    """What every winner of a run says of its origin; `shared`: another program worked on the GPU meanwhile."""

    arch: str
    device: str
    versions: tuple[tuple[str, str], ...]
    shared: bool = False


@dataclass
class Report:
    """How one problem ended: its winner, or why there is none, and every candidate's outcome.

    `incumbent` is how the config that the results file had for the problem did this time, `vendor` how the best call of
    the vendor library did in the finals, where the profiler says, `torch` how PyTorch's own did, and `sums` in which
    order each call of a library adds up K. `table` has the candidates as text where the report comes from another
    process (`candidates_file.condensed`). `confidence` says how much of the space was searched. `unchecked` says why a
    winner that was to be checked was not. `bug` is what ended the size when genkern itself is at fault. `warnings` are
    lines for the user.
    """

    problem: GemmProblem
    winner: Winner | None = None
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
        """Where the times of its candidates come from; "" where there are none."""
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


@dataclass(frozen=True)
class Tuner:
    """Tunes problems on one device; tuners of several devices share workshop, journal and progress.

    `strategy` says what is compiled and measured, and when that is enough (None: the default), and `limit` ends it.
    `incumbents` are winners of earlier runs. Each is measured and a finalist again, whatever the space holds: so tuning
    a problem anew does not lose a better config, and old and new are compared under the same conditions. `check_all`
    has every finalist checked, not only those that would win, or be the runner-up. `ahead` has what comes next, on its
    way to its turn, and `foresight` is the process that prunes it (None: this one does). `orders` say in which order of
    sums winners must be, of which rows are compared to the bit. `shares` prune what was not prepared.
    """

    spaces: Callable[[str], Space]
    workshop: Workshop
    profiler: Profiler
    checker: Checker | None
    journal: Facts
    progress: Progress
    provenance: Provenance
    budget: Budget
    strategy: ChosenStrategy | None = None
    limit: Limit = NO_LIMIT
    device_index: int = 0
    incumbents: Mapping[GemmProblem, Config] = field(default_factory=dict)
    check_all: bool = False
    ahead: Ahead = field(default_factory=Ahead)
    foresight: Foresight | None = None
    orders: Orders = ANY_ORDER
    shares: Shares | None = None

    def tune(self, problem: GemmProblem, may_prepare: Callable[[], object] = lambda: None) -> Report:
        """Prune, compile, screen, re-time, check, choose. Facts of an earlier run are not made again.

        `may_prepare` is called once the first binaries are on order: then is the time to `prepare` what comes next.
        A bug of genkern ends the size, and is in the report. Raises GenkernError when the run itself cannot go on (a
        full disk, a device that stays broken).
        """
        try:
            with bugs_told():
                return self._tuned(problem, may_prepare)
        except BugError as bug:
            report = Report(problem, message=f"a bug in genkern: {bug}", bug=bug)
            self.journal.ended(problem, Ended({}, report.message))
            return report

    def prepare(self, problem: GemmProblem) -> None:
        """Prune, ask and order ahead of the problem's turn, in a thread; what ends that is raised in its turn."""
        self.ahead.begin(problem, functools.partial(self._prepared, problem, behind=True))

    def forget(self, problem: GemmProblem) -> None:
        """The problem that was to be prepared is another's."""
        self.ahead.forget(problem)

    def close(self) -> None:
        """Give up what was prepared."""
        self.ahead.forget(wait=True)

    def _prepared(self, problem: GemmProblem, *, behind: bool) -> Prepared:
        strategy = self.strategy or chosen_strategy()
        how = self.budget, strategy, self.limit, self.device_index, self.foresight, self.incumbents, self.orders
        preparation = Preparation(self.workshop, self.journal, *how, self.shares)
        return preparation.of(problem, self.spaces(problem.op), self.incumbents.get(problem), behind=behind)

    def _tuned(self, problem: GemmProblem, may_prepare: Callable[[], object]) -> Report:
        report, facts = Report(problem), self.journal.of(problem)
        with report.stage("prune"):
            prepared = self.ahead.take(problem) or self._prepared(problem, behind=False)
        with contextlib.closing(prepared):
            report.pruned, incumbent = prepared.pruned, prepared.incumbent
            report.outcomes[Outcome.ILLEGAL] = sum(report.pruned.illegal.values())
            report.outcomes[Outcome.PRUNED] = sum(report.pruned.dropped.values())
            if why := prepared.illegal:
                name = self.incumbents[problem].name
                report.incumbent = Measurement(name, Outcome.ILLEGAL, self.profiler.time_source, message=why)
                report.candidates[name] = report.incumbent
            if (bench := prepared.bench) is None or (search := prepared.search) is None:
                report.outcomes.update(m.outcome for m in report.candidates.values())
                report.message = "no config of the space suits this size (--explain shows the rules)"
                self.journal.ended(problem, Ended(dict(report.outcomes), report.message))
                return report
            bench.stand(behind=False)
            may_prepare()
            bar = self.progress.problem(problem.size, len(prepared.configs), self.workshop.farm.counts)
            self.journal.began(problem, Begun(len(prepared.configs), self.device_index, round(time.time(), 3)))
            with report.stage("compile and screen"), bar as advance:
                for measurement in self._screen(bench, search, facts):
                    report.candidates[measurement.config] = measurement
                    advance(1)
            report.binaries = bench.job.binaries
            report.confidence = search.confidence
            winner = self._choose(bench.job, facts, report)
            if winner is not None and winner.config.name in bench.job.ready:
                winner = replace(winner, source=bench.source_of(winner.config))
            if winner is not None:
                times = times_kept(problem, facts.screened.values(), report.candidates, self.workshop.gpu)
                winner = replace(winner, peer_us=times)
            report.winner = winner
            for name, found in report.candidates.items():
                if found.outcome is Outcome.WRONG:
                    search.tell(Lost(Config.parse(name), found.outcome))
        if facts.winner is not None:
            # Decided by an earlier run, whose neighbours were others: a file that says so may be in use.
            report.winner = facts.winner
        if incumbent is not None and report.incumbent is None:
            report.incumbent = report.candidates[incumbent.name]
        report.outcomes.update(m.outcome for m in report.candidates.values())
        report.warnings = tuple(barren_families(report.candidates.values()))
        if report.winner is not None:
            self.journal.won(report.winner)
        self.journal.ended(problem, Ended(dict(report.outcomes), report.message))
        return report

    def _screen(self, bench: Bench, search: Search, facts: ProblemFacts) -> Iterator[Measurement]:
        """Every candidate's first measurement, from the journal where it is known."""
        problem, job = bench.job.session.problem, bench.job
        known = dict(facts.screened)
        search.on_made = lambda: self.journal.compiled(problem, Compiled(*bench.counts))
        in_a_row: list[str] = []
        try:
            for measurement in search.measurements(self.profiler):
                self.journal.screened(problem, measurement, bench.code_of(Config.parse(measurement.config)))
                in_a_row = [*in_a_row, measurement.config] if measurement.outcome in _LOSSES else []
                yield measurement
        except ProfilerError:
            # The first loss may be what broke the device, so nobody measures that one again. Those after it had no
            # device to run on.
            self.journal.retracted(problem, in_a_row[1:])
            raise
        self.journal.searched(problem, search.searched())
        self.journal.made(problem, search.made)
        job.unfit |= {name: unfit for name, unfit in search.left_out().items() if name not in job.unfit}
        yield from (measurement for name, measurement in known.items() if name in job.ready)
        for name, unfit in job.unfit.items():
            yield Measurement(name, unfit.outcome, self.profiler.time_source, message=unfit.message)

    def _choose(self, job: Job, facts: ProblemFacts, report: Report) -> Winner | None:
        """Re-time the best, then take the first of the ranking whose result is correct."""
        incumbent = self.incumbents.get(job.session.problem)
        if not facts.finals:
            with contextlib.ExitStack() as alone:
                with report.stage("wait for its turn"):
                    alone.enter_context(self.profiler.alone())
                with report.stage("re-time"):
                    # Thousands have none.
                    able = [m for m in report.candidates.values() if m.outcome is Outcome.MEASURED]
                    finals = self._finals(job, able, incumbent)
            if finals is None:
                report.message = "no candidate could be measured (--profile_file says why)"
                return None
            self.journal.retimed(job.session.problem, finals)
        for final in facts.finals:
            if final.config in report.candidates:
                report.candidates[final.config] = final
        report.torch = next((m for m in facts.finals if m.config == VENDOR), None)
        with report.stage("check"):
            report.sums = self._comparing.sums_of_calls(job, facts, report.candidates.values())
        report.vendor = vendor = self._vendor(job, facts, report)
        ours = [m for m in facts.finals if library_of(m.config) in OURS]
        contenders = [m for m in ours if self._may_win(job, m)]
        wins = self.journal.wins.of(job.session.problem, [m.config for m in contenders])
        for final in ranking(contenders, vendor, wins) if self.check_all else ():
            if not self._passes(job, facts, report, final):
                contenders.remove(final)
        while ranked := ranking(contenders, vendor, wins):
            if self._passes(job, facts, report, ranked[0]):
                runner_up = self._runner_up(job, facts, report, ranked[1:])
                before = report.candidates.get(incumbent.name) if incumbent else None
                fastest = self.orders.fastest(job.session.problem, library_calls(facts.finals, self.budget))
                chosen = Compared(ranked[0], runner_up, vendor, report.torch, before, fastest)
                with report.stage("confirm"):
                    again = confirmed(self.profiler, self.journal, job, facts, chosen)
                if again.is_measured:
                    report.vendor, report.torch, report.incumbent = again.vendor, again.torch, again.incumbent
                    if self.checker is not None and not self.checker.can_check(Config.parse(again.winner.config)):
                        report.unchecked = f"needs a {self.provenance.arch} GPU"
                    return self._winner(job, again, facts, report)
                report.candidates[again.winner.config] = again.winner
            contenders.remove(ranked[0])
        report.message = without_winner(report.candidates)
        return None

    def _finals(self, job: Job, able: Collection[Measurement], incumbent: Config | None) -> list[Measurement] | None:
        """The finals among the best of those that are able to win; None where there is nobody."""
        names = semifinalists(able, self.budget.finalists)
        if len(names) > self.budget.finalists:
            ready = [job.ready[name] for name in names]
            names = self.profiler.semifinal(job.session, ready, self.budget.finalists)
        if incumbent is not None:
            names += finalists((m for m in able if m.config == incumbent.name and m.config not in names), 1)
        return self.profiler.retime(job.session, [job.ready[name] for name in names]) if names else None

    def _may_win(self, job: Job, final: Measurement) -> bool:
        return self.orders.may_win(job.session.problem, final.config, self.provenance.arch)

    @property
    def _comparing(self) -> Comparing:
        rows = None if self.checker is None else self.checker.rows
        return Comparing(rows, self.orders, self.journal, self.provenance.arch)

    def _runner_up(
        self, job: Job, facts: ProblemFacts, report: Report, others: Sequence[Measurement]
    ) -> Measurement | None:
        """The fastest of those behind the winner, where those tied with it stand by merit; checked where that is quick.

        A wrong one would make the winner's margin a figure about nothing.
        """
        for other in sorted(others, key=lambda m: m.duration_us or 0.0):
            if self.checker is None or not self.checker.quick or self._passes(job, facts, report, other):
                return other
        return None

    def _vendor(self, job: Job, facts: ProblemFacts, report: Report) -> Measurement | None:
        """The library's fastest call that may win and is right; the first that was not measured where none was.

        PyTorch's own call is what everybody uses, and taken at its word; an algorithm that was found here is checked.
        """
        calls = library_calls(facts.finals, self.budget)
        for call in self.orders.calls(job.session.problem, calls, facts.sums):
            if library_of(call.config) == TORCH or self.checker is None:
                return call
            with report.stage("check"):
                if (check := facts.checks.get(call.config)) is None:
                    check = self.checker.check_call(job.session, call.config)
                    self.journal.checked(job.session.problem, check)
            if check.passed:
                return call
        return None

    def _passes(self, job: Job, facts: ProblemFacts, report: Report, final: Measurement) -> bool:
        """True if a finalist is right, or if nothing here checks it; otherwise its outcome says what it is."""
        with report.stage("check"):
            check = self._check(job, facts, final.config)
            if check is not None and check.passed:
                check = self._comparing.check(job, facts, final.config, self.workshop) or check
        if check is None or check.passed:
            return True
        if final.config in report.candidates:
            outcome = check.lost or Outcome.WRONG
            report.candidates[final.config] = Measurement(
                final.config, outcome, final.time_source, "final", final.duration_us, message=wrong_text(check)
            )
        return False

    def _check(self, job: Job, facts: ProblemFacts, name: str) -> Check | None:
        if self.checker is None or not self.checker.can_check(Config.parse(name)):
            return None
        if (check := facts.checks.get(name)) is None:
            if name not in job.ready:
                # Timed by an earlier run; this one has no binary of it, and decides the size without it. No fact of it:
                # nothing was found out about its result.
                unfit = job.unfit.get(name, Unfit(Outcome.NOT_SEEN, "it is no config of this size any more"))
                why = f"timed before, but not checked: {unfit.message}"
                return Check(name, False, 1.0, math.inf, "", NOT_CHECKED, why, unfit.outcome)
            check = self.checker.check(job.session, job.ready[name])
            self.journal.checked(job.session.problem, check)
        return check

    def _winner(self, job: Job, compared: Compared, facts: ProblemFacts, report: Report) -> Winner:
        final, runner_up, vendor, torch = compared.winner, compared.runner_up, compared.vendor, compared.torch
        assert final.duration_us is not None
        chosen, cost = self._comparing.chosen(compared, facts, job, self.budget)
        config, predicted = Config.parse(final.config), None
        if final.time_source == PREDICTED:
            predicted = predicted_times(job.session.problem, [config], self.workshop.gpu)[0].interval_us
        return Winner(
            problem=job.session.problem,
            config=config,
            duration_us=final.duration_us,
            spread_us=spread_us(final.samples_us),
            samples=len(final.samples_us),
            time_source=final.time_source + SHARED * self.provenance.shared,
            arch=self.provenance.arch,
            device=self.provenance.device,
            versions=self.provenance.versions,
            check=with_rows(facts.checks.get(final.config), facts, final.config),
            vendor_us=vendor.duration_us if vendor else None,
            runner_up=runner_up.config if runner_up else "",
            runner_up_us=runner_up.duration_us if runner_up else None,
            interval_us=interval_us(final),
            vendor_interval_us=interval_us(vendor) if vendor else None,
            discarded=final.discarded,
            choice=chosen,
            vendor=call_name(vendor.config) if vendor and vendor.duration_us is not None else "",
            torch_us=torch.duration_us if torch else None,
            code=code_digest(_codes(job.ready[final.config])) if final.config in job.ready else "",
            expected_loss=report.confidence.expected_loss,
            searched_share=report.confidence.searched_share,
            vendor_sums=facts.sums.get(vendor.config, "") if vendor else "",
            invariant_loss=cost,
            predicted_interval_us=predicted,
        )


def wrong_text(check: Check) -> str:
    """Why a check found a result wrong."""
    return check.message or f"error ratio {check.error_ratio:.3g}, worst row {check.worst_row_error:.3g}"


def _codes(candidate: Candidate) -> list[str | None]:
    return [binary.resources.code_sha256 for binary in candidate.binaries]
