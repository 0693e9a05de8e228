"""Tests of genkern/cli/report.py: what a person reads fits the terminal and says what it must."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from winner_factory import LONG, checked, report, winner

from genkern.cli.report import (
    detail_lines,
    format_text,
    outcome_text,
    percent_of_peak,
    percent_of_roofline,
    size_line,
    versus_text,
    winners_table,
)
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.ops.op import bytes_moved
from genkern.timing.libraries import StoredAlgorithm
from genkern.tuning.search_driver import Confidence

GPU = gpu_for_arch("gfx942")
ALGORITHM = StoredAlgorithm(131000, bytes(range(64))).name
WINNERS = [
    winner(16384, 1234.5, LONG, vendor_us=1300.0, check=checked()),
    winner(1, 8.061, vendor_us=7.0, check=checked("1x256x256", "interpreter")),
]


def test_a_wide_table_has_one_line_a_size() -> None:
    """Size, time, TFLOPS, shares of the bounds, source, ratio to the vendor library, check, and who won."""
    title, head, first, second = winners_table(WINNERS, GPU, 200)
    assert title == "AMD Instinct MI300X (gfx942), a16w16 bf16"
    assert head.split("  ")[0] == "size"
    names = ["size", "us", "TFLOPS", "% peak", "% roof", "source", "vs vendor", "check", "winner"]
    assert [word.strip() for word in head.split("  ") if word.strip()] == names
    assert first.split() == [
        "16384x4096x4096",
        "1234.50",
        "445.3",
        "34.1",
        "34.1",
        "rocprofv3",
        "1.053x",
        "ok",
        LONG.name,
    ]
    assert second.split()[:2] == ["1x4096x4096", "8.06"]
    assert head.index("winner") == first.index(LONG.name) == second.index("tiled_")


@pytest.mark.parametrize("columns", [80, 100])
def test_a_narrow_table_wraps_nowhere(columns: int) -> None:
    """The names of the winners, which are long, stand on lines of their own; nothing is cut off."""
    lines = winners_table(WINNERS, GPU, columns)
    assert max(map(len, lines)) <= columns
    assert lines[4] == f"  {LONG.name}"
    assert lines[3].startswith("16384x4096x4096 ")
    assert len(lines) == 1 + 2 * 3


def test_columns_that_say_nothing_are_left_out() -> None:
    """No vendor library, no check; and in a pipe there is no limit."""
    lines = winners_table([winner(16)], GPU, None)
    assert "vs vendor" not in lines[1]
    assert "check" not in lines[1]
    assert len(lines) == 3


def test_error_figures_are_shown_on_request() -> None:
    """The share of elements outside the tolerance and the worst row, of those that were checked."""
    _, head, first, second = winners_table([WINNERS[0], winner(16)], GPU, None, errors=True)
    place, end = head.index("check"), head.index("winner")
    assert head[place:end].split() == ["check", "error", "ratio", "worst", "row"]
    assert first[place:end].split()[0] == "ok"
    assert len(first[place:end].split()) == 3
    assert second[place:end].split() == ["none", "-", "-"]


def test_formats_that_differ_have_a_column() -> None:
    """Two rows of one size can be told apart."""
    scaled = winner(16, op="a8w8", dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz")
    title, _, first, second = winners_table([winner(16), scaled], GPU, None)
    assert title == "AMD Instinct MI300X (gfx942)"
    assert "a16w16 bf16  " in first
    assert "a8w8 fp8e4m3fnuz->bf16  " in second


def test_format_names_what_is_unusual() -> None:
    """Types once where they are equal, layouts, bias and activation where they are not the default."""
    assert format_text(GemmProblem(1, 2, 3)) == "a16w16 bf16"
    odd = GemmProblem(1, 2, 3, "a8w8", "fp8e4m3fn", "fp8e5m2", "fp16", False, True, True)
    assert format_text(odd) == "a8w8 fp8e4m3fn*fp8e5m2->fp16 A column-major, B row-major, bias"
    assert format_text(GemmProblem(1, 2, 3, bias=True, activation="gelu")) == "a16w16 bf16 bias, gelu"


def test_shares_of_the_bounds() -> None:
    """A time at the peak is 100 percent of it; a memory-bound size is judged by the bandwidth."""
    square = GemmProblem(8192, 8192, 8192)
    at_peak = replace(winner(16), problem=square, duration_us=square.flops / GPU.peak_tflops["bf16"] * 1e-6)
    assert percent_of_peak(at_peak, GPU) == pytest.approx(100)
    assert percent_of_roofline(at_peak, GPU) == pytest.approx(100)
    skinny = winner(1)
    bound_us = bytes_moved(skinny.problem) / GPU.memory_tb_per_s * 1e-6
    assert percent_of_roofline(replace(skinny, duration_us=bound_us), GPU) == pytest.approx(100)


@pytest.mark.parametrize(
    ("vendor", "vendor_us", "torch_us", "said"),
    [
        (ALGORITHM, 10.5, 11.0, ", 1.050x vendor (cublaslt), 1.100x torch"),
        ("torch", 11.0, 11.0, ", 1.100x vendor"),
        ("", 11.0, None, ", 1.100x vendor"),
        ("", None, 11.0, ", 1.100x torch"),
        ("", None, None, ""),
    ],
)
def test_how_fast_the_libraries_are(vendor: str, vendor_us: float | None, torch_us: float | None, said: str) -> None:
    """The best of the vendor's library, by whose choice, and PyTorch's own where that is another."""
    assert versus_text(10.0, vendor_us, vendor, torch_us) == said
    tie = versus_text(10.0, vendor_us, vendor, torch_us, tie=True)
    assert tie == (said.replace("vendor (cublaslt)", "vendor (cublaslt), a tie") if vendor == ALGORITHM else tie)
    assert ("a tie" in tie) == (vendor_us is not None)


def test_a_table_names_the_librarys_call() -> None:
    """Where it is not PyTorch's own of all; beside it PyTorch's."""
    best = winner(64, 10.0, vendor=ALGORITHM, vendor_us=10.5, torch_us=11.0)
    plain = winner(16, 10.0, vendor="torch", vendor_us=11.0, torch_us=11.0)
    head, *rows = winners_table([best, plain], GPU, None)[1:]
    assert "vs vendor  vendor    vs torch" in head
    assert rows[0].split()[-4:-1] == ["1.050x", "cublaslt", "1.100x"]
    assert rows[1].split()[-4:-1] == ["1.100x", "torch", "1.100x"]
    assert "vs torch" not in winners_table([plain], GPU, None)[1]


def test_lines_of_a_size() -> None:
    """Numbers first, the long name last; a reduced check is named; a failure says why."""
    assert size_line(report(WINNERS[1])).startswith(
        "1x4096x4096: 8.06 us, 4.2 TFLOPS, 0.868x vendor (rocprofv3), interpreter check ok on 1x256x256: tiled_"
    )
    stood_in = replace(WINNERS[1], check=checked("1x256x256", "interpreter", "fp16"))
    assert ", interpreter check ok in fp16 on 1x256x256: tiled_" in size_line(report(stood_in))
    assert "ok (fp16)" in winners_table([stood_in], GPU, None)[-1]
    assert "gpu check ok: " in size_line(report(replace(WINNERS[0], check=checked("16384x4096x4096"))))
    assert size_line(report(None)) == "1x2x3: no winner: no way"
    again = report(WINNERS[1])
    again.incumbent = Measurement(WINNERS[1].config.name, Outcome.MEASURED, "rocprofv3", "final", 8.06)
    assert size_line(again) == size_line(report(WINNERS[1]))
    again.incumbent = Measurement("tiled_old", Outcome.MEASURED, "rocprofv3", "final", 9.5)
    assert size_line(again).endswith("; before: 9.50 us: tiled_old")
    again.incumbent = Measurement("tiled_old", Outcome.CRASHED, "rocprofv3")
    assert size_line(again).endswith("; before: crashed: tiled_old")
    counts, wrong, sums = detail_lines(report(WINNERS[1]))
    assert counts == "  measured 1, wrong 1, compile_failed 1; prune 0.2 s, check 1.5 s"
    assert wrong.startswith("  wrong: tiled_BM1: error")
    assert sums.startswith("  sums: ")
    again.candidates["tiled_BM1"] = replace(
        again.candidates["tiled_BM1"], outcome=Outcome.UNCHECKED, message="no memory"
    )
    assert detail_lines(again)[1] == "  unchecked: tiled_BM1: no memory"
    again.confidence = Confidence(0.00123, 0.03125)
    assert detail_lines(again)[0].endswith("check 1.5 s; 3.12 % of the binaries, expected loss 0.12 %")
    again.confidence = Confidence(None, 1.0)
    assert detail_lines(again)[0].endswith("check 1.5 s; 100 % of the binaries")
    again.vendor = Measurement("vendor", Outcome.NOT_SEEN, "rocprofv3", "final", message="its calls differ; see F")
    assert detail_lines(again)[-1] == "  vendor library: not_seen: its calls differ; see F"
    again.vendor = replace(again.vendor, outcome=Outcome.MEASURED, message="")
    assert not any("vendor" in line for line in detail_lines(again))


def test_outcomes_are_counted_in_words() -> None:
    """The best first, with thousands set apart, none that did not occur."""
    counts = Counter({Outcome.PRUNED: 131328, Outcome.MEASURED: 672, Outcome.CRASHED: 0})
    assert outcome_text(counts, "cudagraph") == "measured 672, pruned 131,328"
    assert outcome_text(counts, "predicted") == "predicted 672, pruned 131,328"


def test_predicted_times_are_never_called_measured() -> None:
    """Not for a size without a winner either, whose candidates all the same have times."""
    failed = report(None)
    failed.candidates = {"tiled_BM1": Measurement("tiled_BM1", Outcome.MEASURED, "predicted", "final", 9.0)}
    failed.outcomes = Counter({Outcome.MEASURED: 1})
    assert detail_lines(failed)[0].startswith("  predicted 1; ")
