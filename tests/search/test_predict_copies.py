"""Tests of genkern.search.cost_model.splits: what the copies of misaligned operands take."""

from __future__ import annotations

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.predict import predict_us
from genkern.search.cost_model.splits import another_us, realigning_us

H200 = gpu_for_arch("sm_90")
TILED = Config("tiled_tma", 128, 128, 64, 8, 1, 4, 4, realigned=1)


def test_only_what_is_copied_takes_time() -> None:
    """A kernel and a gap for any, then the bytes of A, of B or of both; nothing for families that copy nothing."""
    both = realigning_us(GemmProblem(1024, 1024, 1025), TILED, H200)
    one = realigning_us(GemmProblem(1024, 1025, 1024, row_major_b=True), TILED, H200)
    assert both - another_us(H200) == pytest.approx(2 * (one - another_us(H200)), rel=0.01)
    assert one > another_us(H200)
    assert realigning_us(GemmProblem(4096, 4096, 4096), Config("tiled_tma", 128, 128, 64), H200) == 0


def test_what_leaves_l2_takes_the_memorys_time() -> None:
    """Written and read again: 2.1 GB each way."""
    us = realigning_us(GemmProblem(2**14, 2**14, 2**15 + 1), TILED, H200)
    assert us == pytest.approx(4 * 2**14 * 2**15 * 2 / (H200.memory_tb_per_s * 1e6), rel=0.2)


def test_the_prediction_has_it() -> None:
    """Beside the base's own time, whose kernel it has."""
    off, aligned = GemmProblem(2048, 2048, 2049), GemmProblem(2048, 2048, 2056)
    base = Config("tiled_tma", 128, 128, 64, 8, 1, 4, 4)
    apart = predict_us(off, TILED, Resources(), H200) - predict_us(aligned, base, Resources(), H200)
    assert apart == pytest.approx(realigning_us(off, TILED, H200), abs=0.5)
