"""Tests of genkern.search.cost_model.splits: what each way to split K adds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forms import FORMS, RINGS, made
from machines import known_gpus

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.predict import predict_us
from genkern.search.cost_model.splits import another_us, sharers, splitting_us

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 2112, 7168)
TILED = Config("tiled", 64, 64, 128, 1, 4, 4, 4)
SPLITTING = (
    *("tiled", "tiled_semaphore", "tiled_swapped"),
    *("tiled_tma", "split_tma", "tiled_tma_swapped", "skinny"),
)


def as_tiled(stem: str, splits: int = 4) -> Config:
    """TILED of another form, with so many splits."""
    return made(stem, 64, 64, 128, 1, splits, 4, 4)


@pytest.mark.parametrize("stem", SPLITTING)
def test_more_splits_move_more(stem: str) -> None:
    """Twice the splits cost more, on every GPU of which no rates are known, for whoever stores or adds partial sums."""
    for gpu in (replace(known, rates=None) for known in known_gpus()):
        few, many = (as_tiled(stem, splits) for splits in (4, 8))
        assert 0 < splitting_us(PROBLEM, few, gpu) < splitting_us(PROBLEM, many, gpu)


@pytest.mark.parametrize("stem", SPLITTING)
def test_no_split_costs_nothing(stem: str) -> None:
    """SPLIT_K = 1 adds neither traffic nor a kernel."""
    assert splitting_us(PROBLEM, as_tiled(stem, 1), H200) == 0


def test_kernels_besides_the_main_one_count() -> None:
    """tiled has one more kernel, a semaphore none."""
    kernel_us = another_us(H200)
    tiny = GemmProblem(1, 16, 4096)
    cost = {stem: splitting_us(tiny, as_tiled(stem), H200) for stem in SPLITTING}
    assert cost["tiled"] == cost["split_tma"] == pytest.approx(kernel_us, rel=0.01)
    assert cost["tiled_semaphore"] < kernel_us


@pytest.mark.parametrize("stem", [stem for stem in RINGS if FORMS[stem].cluster_k > 1])
def test_programs_of_a_cluster_share_k(stem: str) -> None:
    """16 tiles on 132 SMs take much less time when each is a cluster's, and the exchange of sums is part of it."""
    resources = Resources(registers=128, shared_bytes=200_000)
    problem = GemmProblem(64, 1024, 8192)
    cluster, alone = (made(name, 64, 64, 64, num_stages=8) for name in (stem, "warp_specialized_swapped"))
    assert predict_us(problem, cluster, resources, H200) < 0.8 * predict_us(problem, alone, resources, H200)
    assert splitting_us(problem, alone, H200) == 0 < splitting_us(problem, cluster, H200) < another_us(H200)


@pytest.mark.parametrize("stem", [stem for stem in RINGS if FORMS[stem].splits_k])
def test_gluon_kernels_share_the_last_wave(stem: str) -> None:
    """Beyond the last full wave, SPLIT_K programs share a tile; a full wave adds nothing, and no split neither."""
    config = made(stem, 128, 128, 64, SPLIT_K=3, num_warps=8, num_stages=4)
    full, over = GemmProblem(11 * 128, 12 * 128, 8192), GemmProblem(10 * 128, 14 * 128, 8192)
    assert splitting_us(full, config, H200) == 0
    assert splitting_us(over, replace(config, SPLIT_K=1), H200) == 0
    # 140 tiles: of these 8 are shared by 24 programs.
    assert [sharers(problem, config, H200) for problem in (full, over)] == [0, 24]
    assert (
        0 < splitting_us(over, config, H200) < splitting_us(over, replace(config, family="tiled_tma", others=()), H200)
    )
