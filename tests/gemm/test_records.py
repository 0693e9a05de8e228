"""Tests of genkern/gemm/records.py."""

from __future__ import annotations

from genkern.gemm.records import Dispatch, Outcome


def test_outcomes_are_their_names_in_files() -> None:
    """What a file says reads back as the outcome, and no two outcomes share a name."""
    assert [Outcome(outcome.value) for outcome in Outcome] == list(Outcome)
    assert Outcome("launch_failed") is Outcome.LAUNCH_FAILED


def test_a_dispatch_lasts_from_start_to_end() -> None:
    """In nanoseconds."""
    assert Dispatch("k", 1_000, 3_500).duration_ns == 2_500
