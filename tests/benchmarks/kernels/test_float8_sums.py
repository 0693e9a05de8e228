"""float8_sums.py without a GPU: its sizes, and what is reported."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kernels.float8_sums import BEST, Race, report
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.sizes import read_sizes
from genkern.ops.accumulate import as_fast, as_full, is_full
from genkern.timing.libraries import VENDOR

SIZES = Path(__file__).resolve().parents[3] / "benchmarks/kernels/float8_sums_sizes.yaml"


def test_each_size_is_there_with_both_kinds_of_sums() -> None:
    problems = read_sizes(str(SIZES), GemmDefaults(), "sm_90").problems
    full = {problem for problem in problems if is_full(problem)}
    assert len(full) == 10
    assert set(problems) == full | {as_fast(problem) for problem in full}
    assert {as_full(as_fast(problem)) for problem in full} == full


def test_report() -> None:
    """Each kind beside the library's of that kind, whichever of its calls is better; errors by contender."""
    races = [
        Race("1x2x3", "per_tensor", "full", "a", {"a": 10.0, VENDOR: 15.0, BEST: 12.0}, {"a": 1.67e-3, VENDOR: 1.6e-3}),
        Race("1x2x3", "per_tensor", "fast", "b", {"b": 8.0, VENDOR: 10.0}, {"b": 2.5e-3}),
        Race("4x5x6", "per_token", "full", "c", {}, {"c": 1.7e-3}),
    ]
    text = report(races)
    assert "| 1x2x3 | per_tensor | full | 10.00 | 15.00 | 12.00 | 1.200 | 1.67e-03 | 1.60e-03 | a |" in text
    assert "a8w8_full_over_lt: 1.200 (least 1.200, 1 of them)" in text
    assert "a8w8_fast_over_lt: 1.250 (least 1.250, 1 of them)" in text
    assert "a8w8_full_error: 0.0017 at most" in text
    assert "a8w8_full_error_of_torch: 0.0016 at most" in text
