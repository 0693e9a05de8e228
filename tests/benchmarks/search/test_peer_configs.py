"""Tests of benchmarks/search/peer_configs.py: what peers would try, by the nearest of our binaries."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.search import peer_configs
from benchmarks.search.peer_configs import Wanted, inductor, inductor_tma, listed, nv_matmul_heuristics, quack
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.search.strategy import Task


def task(*configs: Config, m: int = 4096, dtype: str = "bf16") -> Task:
    problem = GemmProblem(m, 4096, 4096, dtype_a=dtype, dtype_b=dtype, dtype_c=dtype)
    return Task(problem, gpu_for_arch("sm_90"), configs, lambda unit: False)


def test_the_lists_have_as_many_as_the_peers_say() -> None:
    """21 of Inductor, 8 more with TMA, 44 of QuACK, none twice."""
    assert [len({*configs(task())}) for configs in (inductor, inductor_tma, quack)] == [21, 29, 44]


def test_inductor_scales_its_blocks() -> None:
    """To the next power of two of a short side, and no further down than 16."""
    assert max(wanted.tile[0] for wanted in inductor(task(m=5))) == 16
    assert max(wanted.tile[0] for wanted in inductor(task(m=33))) == 64
    assert max(wanted.tile[1] for wanted in inductor(task(m=33))) == 256


def test_quack_swaps_both_sides() -> None:
    """A swapped tile lies along the other side of the problem, and so does its cluster."""
    plain, swapped = list(quack(task()))[:2]
    assert (plain.tile, plain.cluster, plain.swapped) == ((256, 128, None), "1x2", 0)
    assert (swapped.tile, swapped.cluster, swapped.swapped) == ((128, 256, None), "2x1", 1)


def test_the_nearest_stands_for_it() -> None:
    """The tile first, then stages and warps; of another family only where it may stand for it, and behind."""
    near = Config("tiled", 128, 128, 64, num_warps=8, num_stages=4)
    far = Config("tiled", 128, 64, 64, num_warps=4, num_stages=3)
    other = Config("cute_wgmma", 128, 128, 64, num_warps=4, num_stages=3)
    wanted = Wanted(("tiled", "persistent_tma"), (128, 128, 64), 3, 4)

    def asked(*configs: Config) -> list[Config]:
        strategy = listed(lambda _: [wanted, wanted])(task(*configs))
        return [unit.configs[0] for unit in [*strategy.ask(1), *strategy.ask(9)]]

    assert asked(far, near, other) == [near]
    assert asked(far, other) == [far]
    assert asked(other) == []
    tma = Config("persistent_tma", 128, 128, 64, num_warps=4, num_stages=3)
    assert wanted.distance(tma) > 0 == wanted.distance(Config("tiled", 128, 128, 64, num_warps=4, num_stages=3))


def test_what_a_config_does_not_say_is_no_distance() -> None:
    """Split-K it says: the peers' kernels have none where they do not name it."""
    wanted = Wanted(("cute_wgmma",), (128, 256, None), None, None, "2x1", "ping_pong", 0)
    config = Config("cute_wgmma", 128, 256, 64, num_warps=8, num_stages=4, schedule="ping_pong", cluster="2x1")
    assert wanted.distance(config) == 0
    assert wanted.distance(config.with_values(SPLIT_K=2)) == 1
    assert wanted.distance(config.with_values(schedule="cooperative", cluster="1x2", swapped=1)) == 3


def test_nv_matmul_heuristics_is_asked_for_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its words for GPU, layouts and types; without its wheel that is said; of others it knows nothing."""
    seen: list[object] = []
    kernel = SimpleNamespace(
        cta_tile_m=64, cta_tile_n=16, cta_tile_k=128, stages=8, split_k=4, cluster_m=1, cluster_n=4
    )

    class Interface:
        def __init__(self, **options: object) -> None:
            seen.append(options["gpu"])

        def makeNvMatmulHeuristicsProblem(self, *size: object) -> object:
            seen.append(size)
            return size

        def get(self, problem: object, count: int, precision: str) -> list[dict[str, object]]:
            seen.append((count, precision))
            return [{"kernel": kernel, "runtime": 1e-6}]

    stand_in = ModuleType("nvMatmulHeuristics")
    stand_in.__dict__.update(
        NvMatmulHeuristicsInterfaceEx=Interface,
        NvMatmulHeuristicsTarget=SimpleNamespace(CUTLASS3=4),
        NvMatmulHeuristicsFlags=SimpleNamespace(PERF_MODEL_BASED_AUTO_TUNING=8),
        NvMatmulHeuristicsNvidiaGpu=SimpleNamespace(H200_SXM=9003, H100_SXM=9001),
        boolsToNvMatmulHeuristicsLayout=lambda a, b: "NT"[a] + "NT"[b],
    )
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", stand_in)
    (wanted,) = nv_matmul_heuristics(task(m=64))
    assert seen == [9003, (64, 4096, 4096, "TN"), (64, "TST")]
    assert (wanted.tile, wanted.num_stages, wanted.cluster, wanted.splits) == ((64, 16, 128), 8, "1x4", True)
    nv_matmul_heuristics(replace(task(), gpu=gpu_for_device("NVIDIA H100 80GB HBM3", "sm_90")))
    assert seen[3] == 9001
    assert nv_matmul_heuristics(task(dtype="fp8e4m3fn")) == []
    assert nv_matmul_heuristics(replace(task(), gpu=gpu_for_arch("sm_100"))) == []
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    with pytest.raises(InputError, match="pip install nvidia-matmul-heuristics"):
        peer_configs.nv_matmul_heuristics(task())
