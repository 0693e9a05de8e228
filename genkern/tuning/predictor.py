"""Choice of winners without a GPU: prune the space and take the config that the model of times ranks first.

Nothing is compiled or measured. If a check finds that the config's output is wrong, the next config is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genkern.errors import BugError, reporting_bugs
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, PREDICTED, Candidate, Check, Measurement, Outcome
from genkern.kernels.legality import legal
from genkern.result.result import Proof, Result
from genkern.search.guided.judged import judged_of
from genkern.search.guided.model import first_ranked
from genkern.search.guided.predicted_times import predicted_times
from genkern.space.prune import prune
from genkern.space.space import Space
from genkern.timing.session import Budget, Session
from genkern.tuning.checkers import Checker
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint
from genkern.tuning.search_driver import Confidence
from genkern.tuning.tune import Provenance, Report, wrong_text

# If this many configs were checked and all are wrong, the size ends without a winner.
_MOST_TRIED = 8


@dataclass(frozen=True)
class Predictor:
    """Predicts winners.

    incumbents: winners of earlier runs; only sizes that are not searched (`orders.decided`) keep them
    orders: the order of sums that winners must have
    with_candidates: reports contain the predicted time of every config, not only of the first choice
    checker: checks outputs without binaries; None: no check
    module_dir: folder for the modules that the checker generates
    """

    spaces: Mapping[str, Space]
    gpu: Gpu
    provenance: Provenance
    budget: Budget
    incumbents: Mapping[GemmProblem, Config] = field(default_factory=dict)
    orders: SumOrderConstraint = ANY_ORDER
    with_candidates: bool = False
    checker: Checker | None = None
    module_dir: str = ""

    def report(self, problem: GemmProblem) -> Report:
        """Predict the winner of one size. A bug in genkern ends only this size, and is in the report."""
        try:
            with reporting_bugs():
                return self._report(problem)
        except BugError as bug:
            return Report(problem, message=f"a bug in genkern: {bug}", bug=bug)

    def _report(self, problem: GemmProblem) -> Report:
        report = Report(problem)
        with report.stage("prune"):
            pruned = prune(self.orders.space_of(problem, self.spaces[problem.op]), problem, self.gpu)
            configs = list(dict.fromkeys([*pruned.kept, *self._extra_configs(problem)]))
        report.pruned = pruned
        report.outcomes[Outcome.ILLEGAL] = sum(pruned.illegal.values())
        report.outcomes[Outcome.PRUNED] = sum(pruned.dropped.values())
        if not configs:
            report.message = "no config of the space suits this size (--explain shows the rules)"
            return report
        report.outcomes[Outcome.MEASURED] = len(configs)
        with report.stage("predict"):
            ranked = first_ranked(problem, configs, self.gpu, _MOST_TRIED if self.checker else 1)
            shown = configs if self.with_candidates else ranked
            times = dict(zip(shown, predicted_times(problem, shown, self.gpu), strict=True))
        report.candidates = {
            config.name: Measurement(config.name, Outcome.MEASURED, PREDICTED, "screen", time.us, (time.us,))
            for config, time in times.items()
            if self.with_candidates or config == ranked[0]
        }
        with report.stage("check"):
            chosen, check = self._first_right(problem, ranked, report)
        if chosen is None:
            report.message = "each of the first choices is wrong (--profile_file says why)"
            return report
        judged, time = judged_of(self.gpu.arch), times[chosen]
        loss = None if judged is None else round(1.0 / judged.share_for(problem) - 1.0, 6)
        report.confidence = Confidence(expected_loss=loss)
        report.winner = Result(
            problem=problem,
            config=chosen,
            duration_us=time.us,
            spread_us=0.0,
            samples=1,
            time_source=PREDICTED,
            arch=self.provenance.arch,
            device=self.provenance.device,
            versions=self.provenance.versions,
            check=Proof.of(check),
            predicted_interval_us=time.interval_us,
            expected_loss=loss,
        )
        return report

    def _extra_configs(self, problem: GemmProblem) -> list[Config]:
        """Return further legal configs that may win.

        They are the reference and the best known config of the required order of sums, and the incumbent if the problem
        is not searched.
        """
        known = self.orders.required_configs(problem, self.gpu)
        if problem in self.orders.settled and problem in self.incumbents:
            known = [self.incumbents[problem], *known]
        arch = self.provenance.arch
        return [
            each
            for each in known
            if not legal(problem, each, self.gpu) and self.orders.may_win(problem, each.name, arch)
        ]

    def _first_right(
        self, problem: GemmProblem, ranked: Sequence[Config], report: Report
    ) -> tuple[Config | None, Check | None]:
        """Return the first config that the check does not find wrong, and its check (None: it could not be checked).

        The config is None if all are wrong. Wrong configs are recorded in `report`.
        """
        for config in ranked:
            if self.checker is None:
                return config, None
            if not self.checker.can_check(config):
                report.unchecked = f"needs a {self.gpu.arch} GPU"
                return config, None
            session = Session("", problem, self.provenance.arch, 0, self.module_dir, self.budget)
            check = self.checker.check(session, Candidate(config, ()))
            if check.passed:
                return config, check
            if check.method == NOT_CHECKED:
                report.unchecked = check.message
                return config, None
            report.candidates[config.name] = Measurement(
                config.name, Outcome.WRONG, PREDICTED, "final", message=wrong_text(check)
            )
            report.outcomes[Outcome.MEASURED] -= 1
            report.outcomes[Outcome.WRONG] += 1
        return None, None
