"""The ratios of times under load and alone."""

from __future__ import annotations

import pytest

from benchmarks.timing import overlap_bias
from benchmarks.timing.overlap_bias import Bias


def test_ratio_cancels_a_drift() -> None:
    """In A B B A a steady drift of the clock is noise of the second A, and no bias of B."""
    phases = [{"a": 10.0}, {"a": 11.0}, {"a": 12.0}, {"a": 13.0}]
    assert overlap_bias.biases("s", phases) == [Bias("s", "a", 11.5, 1.0, 1.3)]


def test_only_what_was_timed_in_all_phases() -> None:
    """A kernel that one phase lacks has no ratio."""
    found = overlap_bias.biases("s", [{"a": 10.0, "b": 1.0}, {"a": 12.0}, {"a": 12.0, "b": 1.0}, {"a": 10.0, "b": 1.0}])
    assert [(bias.config, bias.loaded) for bias in found] == [("a", pytest.approx(1.2))]


def test_report_has_sizes_and_percentiles() -> None:
    """A line per size with the median of its kernels, and one for each of the two ratios."""
    text = overlap_bias.report([Bias("s", "a", 10.0, 1.01, 1.0), Bias("s", "b", 12.0, 1.03, 1.0)], 15.5)
    assert "| s | 2 | 10.00 | 1.0200 | 1.0000 |" in text
    assert "| compiling / alone | 2 | 1.0110 | 1.0150 | 1.0200 | 1.0250 | 1.0290 |" in text
    assert text.endswith("15.5 cores busy.")
    assert "0.0 cores" in overlap_bias.report([], 0.0)
