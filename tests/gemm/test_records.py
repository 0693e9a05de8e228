"""Tests of genkern/gemm/records.py."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Dispatch, Outcome, Winner


def test_outcomes_are_their_names_in_files() -> None:
    """What a file says reads back as the outcome, and no two outcomes share a name."""
    assert [Outcome(outcome.value) for outcome in Outcome] == list(Outcome)
    assert Outcome("launch_failed") is Outcome.LAUNCH_FAILED


def test_a_dispatch_lasts_from_start_to_end() -> None:
    """In nanoseconds."""
    assert Dispatch("k", 1_000, 3_500).duration_ns == 2_500


def test_the_margin_is_the_runner_up_over_the_winner() -> None:
    """None without a runner-up; below 1 where a tie went to the slower by a hair."""
    values = (GemmProblem(1, 2, 3), Config("tiled", 16, 16, 16), 10.0, 0.1, 5, "cudagraph", "sm_90", "H200", ())
    assert Winner(*values).margin is None
    assert Winner(*values, runner_up="b", runner_up_us=10.5).margin == 1.05
    assert Winner(*values, runner_up="b", runner_up_us=9.99).margin == 0.999
