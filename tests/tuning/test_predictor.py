"""Predictor: winners without a GPU, whose choice no check changes unless it finds a wrong result."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_of_product
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.search.guided.model import ranked
from genkern.search.guided.predicted_times import predicted_times
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.timing.session import Budget, Session
from genkern.tuning.predictor import Predictor
from genkern.tuning.tune import Provenance

PROBLEM, H100 = GemmProblem(64, 1024, 512), gpu_of_product("h100")
SPACE = load_space("nvidia_quick", "sm_90", "a16w16")
PREDICTOR = Predictor({"a16w16": SPACE}, H100, Provenance("sm_90", "NVIDIA H100 (not present)", ()), Budget())


class Checking:
    """Checks configs unless they are among `not_here`; results of those in `wrong` are wrong, of `lost` not known."""

    quick = False
    rows = None

    def __init__(self, not_here: frozenset[str] = frozenset(), wrong: int = 0, lost: str = "") -> None:
        self.not_here, self.wrong, self.lost = not_here, wrong, lost
        self.asked: list[str] = []

    def can_check(self, config: Config) -> bool:
        return config.name not in self.not_here

    def check(self, session: Session, candidate: Candidate) -> Check:
        assert candidate.binaries == ()
        self.asked.append(candidate.config.name)
        if self.lost:
            return Check(candidate.config.name, False, 1.0, math.inf, "", NOT_CHECKED, self.lost, Outcome.TIMED_OUT)
        is_right = len(self.asked) > self.wrong
        return Check(candidate.config.name, is_right, 0.0, 0.0, session.problem.size, "interpreter")

    def check_call(self, session: Session, name: str) -> Check:
        raise AssertionError("no library is asked")


def first() -> Config:
    return ranked(PROBLEM, prune(SPACE, PROBLEM, H100).kept, H100)[0]


def test_the_winner_is_the_models_first_choice_with_its_predicted_time() -> None:
    report = PREDICTOR.report(PROBLEM)
    (time,) = predicted_times(PROBLEM, [first()], H100)
    winner = report.winner
    assert winner is not None
    assert (winner.config, winner.duration_us, winner.predicted_interval_us) == (first(), time.us, time.interval_us)
    assert (winner.device, winner.time_source) == ("NVIDIA H100 (not present)", "predicted")
    assert sum(report.outcomes.values()) == SPACE.size


def test_every_config_has_the_same_time_if_all_are_asked_for() -> None:
    report = replace(PREDICTOR, with_candidates=True).report(PROBLEM)
    assert report.winner is not None
    kept = prune(SPACE, PROBLEM, H100).kept
    assert {name: m.duration_us for name, m in report.candidates.items()} == {
        config.name: time.us for config, time in zip(kept, predicted_times(PROBLEM, kept, H100), strict=True)
    }
    assert min(m.duration_us or 0.0 for m in report.candidates.values()) == report.winner.duration_us


@pytest.mark.parametrize(
    ("checker", "said"),
    [
        (Checking(not_here=frozenset([first().name])), "GPU"),
        (Checking(lost="the interpreter had no result after 300 s"), "300 s"),
        (Checking(), ""),
    ],
    ids=["cannot check it", "was lost", "finds it right"],
)
def test_a_check_does_not_change_the_choice(checker: Checking, said: str) -> None:
    report = replace(PREDICTOR, checker=checker).report(PROBLEM)
    assert report.winner is not None
    assert report.winner.config == first()
    assert said in report.unchecked
    assert bool(report.unchecked) == bool(said)
    assert (report.winner.check is not None) == (not said)


def test_a_wrong_result_does_not_win() -> None:
    checker = Checking(wrong=1)
    report = replace(PREDICTOR, checker=checker).report(PROBLEM)
    assert report.winner is not None
    assert report.winner.config.name == checker.asked[1] != first().name
    assert (report.candidates[first().name].outcome, report.outcomes[Outcome.WRONG]) == (Outcome.WRONG, 1)
    assert sum(report.outcomes.values()) == SPACE.size


def test_a_size_has_no_winner_if_its_first_choices_are_all_wrong() -> None:
    report = replace(PREDICTOR, checker=Checking(wrong=99)).report(PROBLEM)
    assert report.winner is None
    assert "wrong" in report.message
