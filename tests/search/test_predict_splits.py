"""Tests of genkern.search.predict_splits: what each way to split K adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, known_gpus
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.catalogue import FAMILIES as FACTS
from genkern.kernels.catalogue import GLUON
from genkern.search.predict import predict_us
from genkern.search.predict_splits import GAP_US, KERNEL_US, sharers, splitting_us

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 2112, 7168)
TILED = Config("tiled", 64, 64, 128, 1, 4, 4, 4)
FAMILIES = (
    *("tiled", "tiled_semaphore", "tiled_atomic", "tiled_swapped"),
    *("tiled_tma", "split_tma", "tiled_tma_swapped", "skinny"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_splits_move_more(family: str) -> None:
    """Twice the splits cost more, on every GPU, for whoever stores or adds partial sums."""
    for gpu in known_gpus():
        few, many = (replace(TILED, family=family, SPLIT_K=splits) for splits in (4, 8))
        assert 0 < splitting_us(PROBLEM, few, gpu) < splitting_us(PROBLEM, many, gpu)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "tiled_atomic"])
def test_no_split_costs_nothing(family: str) -> None:
    """SPLIT_K = 1 adds neither traffic nor a kernel."""
    assert splitting_us(PROBLEM, replace(TILED, family=family, SPLIT_K=1), H200) == 0


def test_kernels_besides_the_main_one_count() -> None:
    """tiled has one more kernel, tiled_atomic two, or one where C holds the sums, and a semaphore none."""
    kernel_us = GAP_US + KERNEL_US
    tiny = GemmProblem(1, 16, 4096)
    cost = {family: splitting_us(tiny, replace(TILED, family=family), H200) for family in FAMILIES}
    assert cost["tiled"] == cost["split_tma"] == pytest.approx(kernel_us, rel=0.01)
    assert cost["tiled_atomic"] == pytest.approx(2 * kernel_us, rel=0.01)
    assert cost["tiled_semaphore"] < kernel_us
    sums = replace(tiny, dtype_c="fp32")
    assert splitting_us(sums, replace(TILED, family="tiled_atomic"), H200) == pytest.approx(kernel_us, rel=0.01)


def test_stream_k_shares_the_last_wave() -> None:
    """140 tiles on 132 units take little more than 132, where whole tiles take two waves; a full wave adds nothing."""
    resources = Resources(registers=128, shared_bytes=200_000)
    stream_k, tiled = (Config(family, 128, 128, 64, num_warps=8, num_stages=4) for family in ("stream_k", "tiled"))
    full, over = GemmProblem(11 * 128, 12 * 128, 8192), GemmProblem(10 * 128, 14 * 128, 8192)
    assert splitting_us(full, stream_k, H200) == 0
    assert predict_us(full, stream_k, resources, H200) == predict_us(full, tiled, resources, H200)
    assert predict_us(over, stream_k, resources, H200) < 0.8 * predict_us(over, tiled, resources, H200)


@pytest.mark.parametrize("family", [family for family in GLUON if FACTS[family].cluster > 1])
def test_programs_of_a_cluster_share_k(family: str) -> None:
    """16 tiles on 132 SMs take much less time when each is a cluster's, and the exchange of sums is part of it."""
    resources = Resources(registers=128, shared_bytes=200_000)
    problem = GemmProblem(64, 1024, 8192)
    cluster, alone = (Config(name, 64, 64, 64, num_stages=8) for name in (family, "warp_specialized_swapped"))
    assert predict_us(problem, cluster, resources, H200) < 0.8 * predict_us(problem, alone, resources, H200)
    assert splitting_us(problem, alone, H200) == 0 < splitting_us(problem, cluster, H200) < KERNEL_US


@pytest.mark.parametrize("family", [family for family in GLUON if FACTS[family].splits_k])
def test_gluon_kernels_share_the_last_wave(family: str) -> None:
    """Beyond the last full wave, SPLIT_K programs share a tile; a full wave adds nothing, and no split neither."""
    config = Config(family, 128, 128, 64, SPLIT_K=3, num_warps=8, num_stages=4)
    full, over = GemmProblem(11 * 128, 12 * 128, 8192), GemmProblem(10 * 128, 14 * 128, 8192)
    assert splitting_us(full, config, H200) == 0
    assert splitting_us(over, replace(config, SPLIT_K=1), H200) == 0
    # 140 tiles: of these 8 are shared by 24 programs.
    assert [sharers(problem, config, H200) for problem in (full, over)] == [0, 24]
    assert 0 < splitting_us(over, config, H200) < splitting_us(over, replace(config, family="tiled_tma"), H200)
