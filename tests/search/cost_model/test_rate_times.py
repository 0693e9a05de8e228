"""Tests of genkern.search.cost_model.rate_times: how the terms make a time. There is no measurement to compare it with.

That no time is below the roofline is tested for all GPUs in tests/search/test_predict.py.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpu import Gpu
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.predict import predict_us, predicted_us

MI300X = gpu_for_arch("gfx942")
FEW_ROWS, LARGE = GemmProblem(16, 1024, 8192), GemmProblem(8192, 8192, 8192)


def test_many_at_once_have_the_times_of_each() -> None:
    """On every GPU, whatever stands beside a config."""
    sides = itertools.product((4, 16, 128), (16, 64), (64, 256), (1, 7))
    configs = [Config("tiled", m, n, k, SPLIT_K=split, num_warps=2) for m, n, k, split in sides]
    for gpu in map(gpu_for_arch, known_archs()):
        alone = [predict_us(FEW_ROWS, config, Resources(), gpu) for config in configs]
        assert predicted_us(FEW_ROWS, configs, gpu) == pytest.approx(alone, rel=1e-12)
        assert predicted_us(FEW_ROWS, [], gpu) == []


def test_splitting_k_helps_where_units_idle() -> None:
    """16 tiles leave 288 CUs without work, and 8192 of them none."""
    tile, split = (Config("tiled", 16, 64, 128, SPLIT_K=count) for count in (1, 8))
    assert predict_us(FEW_ROWS, split, Resources(), MI300X) < 0.7 * predict_us(FEW_ROWS, tile, Resources(), MI300X)
    whole, parts = (Config("tiled", 128, 128, 64, SPLIT_K=count, num_warps=8) for count in (1, 8))
    assert predict_us(LARGE, whole, Resources(), MI300X) < predict_us(LARGE, parts, Resources(), MI300X)


def test_few_workgroups_wait_for_latency() -> None:
    """A deeper pipeline helps one workgroup of a CU, and hardly one that multiplies all the time."""

    def gain(problem: GemmProblem, *tile: int) -> float:
        two, three = (Config("tiled", *tile, num_warps=8, num_stages=stages) for stages in (2, 3))
        return predict_us(problem, two, Resources(), MI300X) / predict_us(problem, three, Resources(), MI300X)

    assert gain(FEW_ROWS, 16, 64, 128) > 1.2
    assert gain(LARGE, 256, 128, 64) < 1.1


def test_a_wave_that_is_not_full_takes_as_long() -> None:
    """305 tiles on 304 CUs take longer than 304, and as long as 608."""
    config, needs = Config("tiled", 128, 128, 64, num_warps=8), Resources(registers=256, shared_bytes=65536)
    times = [predict_us(GemmProblem(128, 128 * tiles, 8192), config, needs, MI300X) for tiles in (304, 305, 608)]
    assert times[1] > 1.3 * times[0]
    assert times[2] == pytest.approx(times[1], rel=0.5)


def test_what_cannot_launch_never_ends() -> None:
    """A binary that needs more LDS than there is."""
    needs = Resources(registers=64, shared_bytes=65536 + 512)
    assert predict_us(LARGE, Config("tiled", 128, 128, 64), needs, MI300X) == math.inf


@pytest.mark.parametrize(
    ("field", "factor"),
    [("matrix_share", 0.5), ("latency_us", 2), ("step_us", 3), ("start_us", 3), ("kernel_us", 2), ("gap_us", 2),
     ("memory_share", 0.5), ("l2_tb_per_s", 0.3), ("last_level_tb_per_s", 0.3), ("load_bytes_per_clock", 0.3),
     ("lds_bytes_per_clock", 0.3)],
)  # fmt: skip
def test_every_rate_counts(field: str, factor: float) -> None:
    """A slower one makes some kernel slower, and none faster."""
    rates = MI300X.rates
    assert rates is not None
    slower: Gpu = replace(MI300X, rates=replace(rates, **{field: factor * getattr(rates, field)}))
    configs = [Config("tiled", 16, 64, 128, SPLIT_K=8), Config("tiled", 128, 128, 64, num_warps=8)]
    before, after = (
        [time for problem in (FEW_ROWS, LARGE) for time in predicted_us(problem, configs, gpu)]
        for gpu in (MI300X, slower)
    )
    assert all(its >= was for its, was in zip(after, before, strict=True))
    assert max(its / was for its, was in zip(after, before, strict=True)) > 1.01
