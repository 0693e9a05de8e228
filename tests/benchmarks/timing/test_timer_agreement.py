"""Reading ncu, and comparing timers."""

from __future__ import annotations

import pytest

from benchmarks.timing import timer_agreement

HEAD = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def ncu_text(*kernels: tuple[str, str, str]) -> list[str]:
    """What ncu writes of kernels with a unit and a value each."""
    rows = [
        f'"{i}","7","{name}","Command line profiler metrics","{timer_agreement.METRIC}","{unit}","{value}"'
        for i, (name, unit, value) in enumerate(kernels)
    ]
    return ["==PROF== Connected to process 7", "==PROF== Disconnected", HEAD, *rows]


def test_reads_units_and_thousands() -> None:
    """Durations come in microseconds whatever ncu's unit, with its commas."""
    kernels = timer_agreement.read_ncu(ncu_text(("gemm", "ns", "12,345"), ("gemm<a, b>", "usecond", "7.5")))
    assert kernels == [("gemm", pytest.approx(12.345)), ("gemm<a, b>", 7.5)]


def test_no_table_says_why() -> None:
    """Without a table the error has ncu's last words."""
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        timer_agreement.read_ncu(["==PROF== Connected", "==ERROR== ERR_NVGPUCTRPERM", ""])


def test_splits_sizes_and_calls() -> None:
    """A marker begins a size; the kernels of a call are added up; the first call does not count."""
    mark = ("at::cuda::spin_kernel(long)", 1.0)
    kernels = [("before", 9.0), mark, ("g", 50.0), ("g", 5.0), ("g", 7.0), mark]
    kernels += [("g", 9.0), ("r", 9.0), ("g", 3.0), ("r", 1.0), ("g", 5.0), ("r", 1.0)]
    assert timer_agreement.split_calls(kernels, 3) == [6.0, 5.0]


def test_part_of_a_call_is_refused() -> None:
    """A number of kernels that no whole number per call explains is no measurement."""
    with pytest.raises(ValueError, match="3 kernels for 2 calls"):
        timer_agreement.split_calls([("spin_kernel", 1.0), ("g", 1.0), ("g", 1.0), ("g", 1.0)], 2)


def test_report_takes_the_median_of_the_passes() -> None:
    """Ratios are of the medians over the passes; a size that a timer lacks has dashes."""
    times = {
        "cudagraph": {"a": [11.0, 10.0, 60.0], "b": [100.0]},
        "cupti": {"a": [10.0], "b": [100.0]},
        "ncu": {"b": [80.0]},
    }
    text = timer_agreement.report(times)
    assert "| a | 11.00 | 10.00 | 1.100 | +1.00 | - | - | - |" in text
    assert "| b | 100.00 | 100.00 | 1.000 | +0.00 | 80.00 | 1.250 | +20.00 |" in text
    assert "| cupti | of 50 us and more | 1 | 1.000 |" in text
