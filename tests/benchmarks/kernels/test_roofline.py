"""Bounds of tuned sizes, as benchmarks/kernels/roofline.py prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms import FORMS, made
from winner_factory import write_results

from benchmarks.kernels import roofline
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result

MACHINE = roofline.Machine(4.0, 800.0, 100, "made up")
SKINNY, SQUARE = GemmProblem(1, 4000, 4000), GemmProblem(8000, 8000, 8000)
RESULTS = Path(__file__).resolve().parents[3] / "results" / "nvidia_h200" / "anchors_bf16.yaml"


def test_the_larger_bound_counts() -> None:
    """A row is bound by the weights' bytes, a large square by its operations."""
    skinny, square = roofline.bounds(SKINNY, MACHINE), roofline.bounds(SQUARE, MACHINE)
    assert (skinny.name, square.name) == ("memory", "compute")
    assert skinny.us == pytest.approx((4000 * 4000 + 8000) * 2 / 4e6)
    assert square.us == pytest.approx(2 * 8000**3 / 8e8)


def test_traffic_and_fill_follow_from_the_tile() -> None:
    """40 tiles on 100 units leave 60 idle; each brings in its rows and columns along all of K, or its split of it."""
    problem = GemmProblem(256, 1280, 8192)
    config = Config("tiled", 64, 128, 64)
    assert roofline.fill(problem, config, 100) == pytest.approx(0.4)
    assert roofline.unit_bytes_per_us(problem, config, 10.0, 100) == pytest.approx((64 + 128) * 8192 * 2 / 10)
    split = Config("tiled", 64, 128, 64, SPLIT_K=4)
    assert roofline.fill(problem, split, 100) == pytest.approx(0.8)
    assert roofline.unit_bytes_per_us(problem, split, 10.0, 100) == pytest.approx(2 * (64 + 128) * 2048 * 2 / 10)
    cluster = Config("warp_specialized", 256, 64, 64, cluster_k=2, swapped=1)
    assert roofline.fill(problem, cluster, 100) == pytest.approx(0.4)
    assert roofline.unit_bytes_per_us(problem, cluster, 10.0, 100) == pytest.approx((256 + 64) * 4096 * 2 / 10)


def test_the_furthest_are_named() -> None:
    """Worst first; a row without a time has no line."""
    rows = [
        Result(SQUARE, Config("tiled", 128, 128, 64), duration_us=1600.0),
        Result(SKINNY, Config("tiled", 16, 64, 64), duration_us=9.0),
        Result(GemmProblem(2, 3, 4), Config("tiled", 16, 16, 16)),
    ]
    text = roofline.report(rows, MACHINE)
    assert "Furthest from the bound: 8000x8000x8000 (0.80), 1x4000x4000 (0.89)." in text
    assert "2x3x4" not in text


def test_command_reads_shipped_results(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU the bounds are the data sheet's, and said to be."""
    roofline.main([str(RESULTS)])
    out = capsys.readouterr().out
    assert "4.800 TB/s, 989 TFLOPS (data sheet of NVIDIA H200)" in out
    for row in read_results(str(RESULTS)):
        assert any(f"| {row.problem.size} |" in line and row.config.name in line for line in out.splitlines())


def test_command_reads_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each size of a results file, whichever kernels won it."""
    winners = [
        Result(
            GemmProblem(64 + i, 4096, 4096),
            made(stem, max(16, traits.sides.least_m), 64, 64),
            duration_us=9.0 + i,
            spread_us=0.1,
            samples=15,
            time_source="cupti",
            arch="sm_90",
            device="NVIDIA H200",
        )
        for i, (stem, traits) in enumerate(FORMS.items())
    ]
    write_results(str(tmp_path / "results.yaml"), winners)
    roofline.main([str(tmp_path / "results.yaml")])
    lines = capsys.readouterr().out.splitlines()
    for winner in winners:
        assert any(f"| {winner.problem.size} |" in line and winner.config.name in line for line in lines)


def test_bounds_that_were_measured_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Given bounds are those of the table; no rate is zero or less, and none is measured as well."""
    roofline.main([str(RESULTS), "--bounds", "2.0", "500"])
    assert capsys.readouterr().out.startswith("2.000 TB/s, 500 TFLOPS (given)")
    for wrong in (["--bounds", "0", "500"], ["--bounds", "2.0", "nan"], ["--bounds", "2.0", "500", "--measure"]):
        with pytest.raises(SystemExit) as ended:
            roofline.main([str(RESULTS), *wrong])
        assert ended.value.code == 2
