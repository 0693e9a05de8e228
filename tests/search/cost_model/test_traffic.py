"""Tests of genkern.search.cost_model.rate_times: caches of XCDs, memory, and the sums of a split K."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpu import Gpu, Rates
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved
from genkern.search.cost_model.columns import columns_of
from genkern.search.cost_model.rate_times import behind_l2_us, splitting_us

MI300X = gpu_for_arch("gfx942")
LARGE, FEW_ROWS = GemmProblem(8192, 8192, 8192), GemmProblem(16, 8192, 8192)


def rates_of(gpu: Gpu) -> Rates:
    """Those of one of AMD's."""
    assert gpu.rates is not None
    return gpu.rates


def behind(problem: GemmProblem, gpu: Gpu, config: Config) -> tuple[float, float]:
    """Of the last-level cache, and of memory."""
    tiles = np.array([-(-problem.M // config.BLOCK_SIZE_M)]), np.array([-(-problem.N // config.BLOCK_SIZE_N)])
    found = behind_l2_us(problem, gpu, rates_of(gpu), columns_of([config]), tiles, np.array([1.0]))
    return float(found[0][0]), float(found[1][0])


def test_each_xcd_reads_for_itself() -> None:
    """One L2 for all CUs would ask the cache behind it for less than eight do; larger tiles ask for no more."""
    tile = Config("tiled", 128, 128, 64)
    together = replace(MI300X, xcds=1)
    assert behind(LARGE, MI300X, tile)[0] > 1.5 * behind(LARGE, together, tile)[0]
    assert behind(LARGE, MI300X, tile)[0] < behind(LARGE, MI300X, Config("tiled", 64, 64, 64))[0]


def test_weights_that_are_read_once_take_as_long_as_memory_does() -> None:
    """At the share of the stated bandwidth that copies sustain."""
    memory_us = behind(FEW_ROWS, MI300X, Config("tiled", 16, 64, 128))[1]
    assert memory_us == pytest.approx(bytes_moved(FEW_ROWS) / (5.3e6 * rates_of(MI300X).memory_share), rel=1e-3)


def test_splits_cost_another_kernel_or_a_wait_and_their_bytes() -> None:
    """None without a split; more for more splits; less where no second kernel is launched."""
    configs = [Config("tiled", 16, 64, 128, SPLIT_K=split) for split in (1, 2, 16)]
    none, two, sixteen = splitting_us(FEW_ROWS, MI300X, rates_of(MI300X), columns_of(configs))
    assert none == 0 < rates_of(MI300X).gap_us + rates_of(MI300X).kernel_us < two < sixteen
    inside = Config("tiled", 16, 64, 128, SPLIT_K=2, reduce="semaphore")
    assert splitting_us(FEW_ROWS, MI300X, rates_of(MI300X), columns_of([inside]))[0] < two
