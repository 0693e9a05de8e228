"""Tests of genkern.space.rules.wgmma: each rule of the Gluon families drops what it says and keeps a neighbour."""

# ruff: noqa: E501  one case a line reads better than wrapped ones

from __future__ import annotations

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.rules.registry import RULES

H200, B200 = gpu_for_arch("sm_90"), gpu_for_arch("sm_100")
LARGE = GemmProblem(4096, 4096, 4096)
FP32_OUT = GemmProblem(4096, 4096, 4096, dtype_c="fp32")
SMALL = GemmProblem(16, 4096, 4096)
FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}
INT8 = {"op": "a8w8", "dtype_a": "int8", "dtype_b": "int8"}
FP32 = {"dtype_a": "fp32", "dtype_b": "fp32", "dtype_c": "fp32"}


def problem(m: int, n: int, k: int, **fields: object) -> GemmProblem:
    """A problem, bf16 unless told otherwise."""
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


def upright(m: int = 64, n: int = 64, **fields: int) -> Config:
    """A config whose rows of wgmma go along M."""
    return Config("warp_specialized", m, n, 64, **fields)


def swapped(m: int = 64, n: int = 64, **fields: int) -> Config:
    """A config whose rows of wgmma go along N."""
    return Config("warp_specialized", m, n, 64, **fields, swapped=1)


def joint(k: int, m: int = 64, n: int = 64, **fields: int) -> Config:
    """A swapped config whose ring is filled by so many elements of K at a time."""
    return Config("warp_specialized", m, n, k, **fields, swapped=1)


def cluster(size: int, m: int = 64, n: int = 64, **fields: int) -> Config:
    """The same, of which a cluster of so many programs makes one tile."""
    return made(f"warp_specialized_swapped_cluster{size}", m, n, 64, **fields)


def pair(shape: str, m: int = 64, n: int = 64, **fields: int) -> Config:
    """An upright config of clusters whose tiles lie side by side."""
    return made(f"warp_specialized_{shape}", m, n, 64, **fields)


# rule, GPU, (problem, config) that it drops, (problem, config) nearby that it keeps
CASES: list[tuple[str, Gpu, tuple[GemmProblem, Config], tuple[GemmProblem, Config]]] = [
    ("wgmma_rows", H200, (problem(64, 64, 64), upright(128)), (problem(65, 64, 64), upright(128))),
    ("wgmma_rows", H200, (problem(32, 64, 64), upright()), (problem(33, 64, 64), upright())),
    # The rows of wgmma go along N; few rows of A are what this family is for.
    ("wgmma_rows", H200, (problem(32, 64, 64), upright()), (problem(32, 64, 64), swapped(32))),
    ("wgmma_rows", H200, (problem(64, 64, 64), swapped(64, 128)), (problem(64, 65, 64), swapped(64, 128))),
    # Widths in steps of 16 along N, or of 8 along M; two steps stay for sizes that have no more.
    ("wgmma_width", H200, (problem(64, 48, 64), upright(64, 64)), (problem(64, 49, 64), upright(64, 64))),
    ("wgmma_width", H200, (problem(64, 1, 64), upright(64, 48)), (problem(64, 1, 64), upright(64, 32))),
    ("wgmma_width", H200, (problem(24, 64, 64), swapped(32)), (problem(25, 64, 64), swapped(32))),
    ("wgmma_width", H200, (problem(1, 64, 64), swapped(24)), (problem(1, 64, 64), swapped(16))),
    ("wgmma_width", H200, (problem(24, 64, 64), swapped(64)), (problem(24, 64, 64), Config("tiled", 64, 64, 64, reduce="semaphore", swapped=1))),
    # Four K-blocks for each program of a cluster, and an SM: of 132 clusters of four and of eight have 120.
    ("cluster_shares", H200, (problem(100, 512, 448), cluster(2, 104)), (problem(100, 512, 449), cluster(2, 104))),
    ("cluster_shares", H200, (problem(100, 31 * 64, 4096), cluster(4, 104)), (problem(100, 30 * 64, 4096), cluster(4, 104))),
    ("cluster_shares", H200, (problem(100, 512, 448), cluster(2, 104)), (problem(100, 512, 448), swapped(104))),
    ("cluster_shares", H200, (problem(8, 16 * 64, 4096), cluster(8, 8)), (problem(8, 15 * 64, 4096), cluster(8, 8))),
    # A tile that has all of M, and no more.
    ("cluster_shares", H200, (problem(105, 512, 4096), cluster(2, 104)), (problem(97, 512, 4096), cluster(2, 104))),
    ("cluster_shares", H200, (problem(96, 512, 4096), cluster(2, 104)), (problem(104, 512, 4096), cluster(2, 104))),
    # Or one that cuts M evenly, into 64 rows or more, for programs that take 70 % of the SMs.
    ("cluster_shares", H200, (problem(632, 136, 4584), cluster(8, 136)), (problem(632, 136, 4584), cluster(8, 128))),
    ("cluster_shares", H200, (problem(112, 24 * 64, 4096), cluster(2, 56)), (problem(128, 24 * 64, 4096), cluster(2, 64))),
    ("cluster_shares", H200, (problem(128, 23 * 64, 4096), cluster(2, 64)), (problem(128, 24 * 64, 4096), cluster(2, 64))),
    # Rows of 2,000 bytes are off 128; of 2,048 they are not, in either layout.
    ("neighbours_share_nothing", H200, (problem(1000, 1000, 1024), pair("2x1")), (problem(1000, 1000, 1000), pair("2x1"))),
    ("neighbours_share_nothing", H200, (problem(1000, 1000, 1024), pair("2x1")), (problem(1000, 1000, 1024, row_major_b=True), pair("2x1"))),
    ("neighbours_share_nothing", H200, (problem(1024, 1000, 1024, row_major_a=False), pair("2x1")), (problem(1000, 1000, 1024, row_major_a=False), pair("2x1"))),
    ("neighbours_share_nothing", H200, (problem(64, 1000, 1000), pair("2x1")), (problem(65, 1000, 1000), pair("2x1"))),
    ("neighbours_share_nothing", H200, (problem(1000, 64, 1000), pair("1x2")), (problem(1000, 65, 1000), pair("1x2"))),
    ("neighbours_share_nothing", H200, (problem(1000, 1000, 1024), pair("1x2")), (problem(1000, 1000, 1024), upright())),
    # With 53248 bytes for another program's sums a stage less fits.
    ("wgmma_shared_memory", H200, (problem(128, 104, 4096), cluster(2, 104, 128, num_stages=6)), (problem(128, 104, 4096), swapped(104, 128, num_stages=6))),
    # 544 tiles of 128x128 are more than four waves of 132; 128x96 would be 726.
    ("wgmma_tile_small", H200, (LARGE, upright(128, 96)), (LARGE, upright(128, 128))),
    ("wgmma_tile_small", H200, (LARGE, swapped(64)), (problem(1024, 2048, 4096), swapped(64))),
    ("wgmma_accumulators", H200, (LARGE, upright(128, 208)), (LARGE, upright(128, 192))),
    ("wgmma_accumulators", H200, (LARGE, upright(64, 16)), (LARGE, upright(64, 32))),
    # 8 accumulators a thread, or 4, where nothing narrower covers the dimension.
    ("wgmma_accumulators", H200, (problem(64, 17, 64), upright(64, 16)), (problem(64, 16, 64), upright(64, 16))),
    ("wgmma_accumulators", H200, (problem(9, 64, 64), swapped(8)), (problem(8, 64, 64), swapped(8))),
    ("wgmma_accumulators", H200, (LARGE, swapped(208, 128)), (LARGE, swapped(200, 128))),
    # A stage of 64x64x64 is 16 KiB: 13 fit beside the tile of C, and 12 are deep enough.
    ("wgmma_shared_memory", H200, (LARGE, upright(num_stages=10)), (LARGE, upright(num_stages=11))),
    ("wgmma_shared_memory", H200, (LARGE, upright(num_stages=14)), (LARGE, upright(num_stages=13))),
    # A stage of 128x176x64 is 38 KiB: 4 fit beside C in 16 bits, which is 44 KiB, and 3 where it is in 32. So for the
    # transpose, whose stage of 128x232x64 is 45 KiB.
    ("wgmma_shared_memory", H200, (LARGE, upright(128, 176, num_stages=5)), (LARGE, upright(128, 176, num_stages=4))),
    ("wgmma_shared_memory", H200, (FP32_OUT, upright(128, 176, num_stages=4)), (FP32_OUT, upright(128, 176, num_stages=3))),
    ("wgmma_shared_memory", H200, (LARGE, upright(128, 176, num_stages=2)), (LARGE, upright(128, 176, num_stages=3))),
    # 128 KiB of C in 32 bits are more than two stages of 48 KiB, and in 16 bits less.
    # One stage would wait for itself: two fit here.
    ("wgmma_shared_memory", H200, (LARGE, swapped(232, 128, num_stages=4)), (LARGE, swapped(232, 128, num_stages=3))),
    ("wgmma_shared_memory", H200, (FP32_OUT, swapped(232, 128, num_stages=3)), (FP32_OUT, swapped(232, 128, num_stages=2))),
    # More than 20 of 8x64x64 fit.
    ("wgmma_shared_memory", H200, (SMALL, swapped(8, num_stages=10)), (SMALL, swapped(8, num_stages=11))),
    ("wgmma_shared_memory", H200, (SMALL, swapped(8, num_stages=10)), (SMALL, swapped(8, num_stages=12))),
    # Of buffers that are filled together only the deepest ring, up to twelve of them, three times as many at least.
    ("wgmma_shared_memory", H200, (SMALL, joint(128, 8, num_stages=5)), (SMALL, joint(128, 8, num_stages=6))),
    ("wgmma_shared_memory", H200, (SMALL, joint(128, 8, num_stages=7)), (SMALL, joint(128, 8, num_stages=6))),
    ("wgmma_shared_memory", H200, (SMALL, joint(256, 8, num_stages=2)), (SMALL, joint(256, 8, num_stages=3))),
    ("wgmma_shared_memory", H200, (SMALL, joint(256, 104, num_stages=2)), (SMALL, joint(128, 104, num_stages=5))),
    ("wgmma_together", H200, (problem(100, 4096, 4096), joint(128, 56)), (problem(100, 4096, 4096), joint(64, 56))),
    ("wgmma_together", H200, (problem(100, 4096, 4096), joint(256, 96)), (problem(100, 4096, 4096), joint(256, 104))),
    ("width_fills_nothing", H200, (problem(1024, 1600, 64), upright(128, 160)), (problem(1024, 2560, 64), upright(128, 160))),
    ("width_fills_nothing", H200, (problem(1024, 1280, 8192), upright(128, 160)), (problem(1024, 1280, 8192), upright(128, 160, SPLIT_K=2))),
    ("width_fills_nothing", H200, (problem(1024, 161, 64), upright(128, 160)), (problem(1024, 160, 64), upright(128, 160))),
    ("width_fills_nothing", H200, (problem(100, 2112, 7168), swapped(96)), (problem(100, 2112, 7168), swapped(104))),
    ("width_fills_nothing", H200, (problem(100, 2112, 7168), swapped(96)), (problem(96, 2112, 7168), swapped(64))),
    ("width_fills_nothing", H200, (problem(400, 2112, 7168), swapped(104, 128)), (problem(400, 2112, 7168), swapped(104, 64))),
    # 64 tiles shared by 128 programs; by 64 more there are none to give.
    ("wgmma_shares", H200, (problem(1024, 1280, 8192), upright(128, 160, SPLIT_K=4)), (problem(1024, 1280, 8192), upright(128, 160, SPLIT_K=3))),
    # 352 tiles are two waves and 88 tiles for 132 SMs; of 124 tiles every SM nearly has one, and of 264 all do.
    ("wgmma_shares", H200, (problem(4096, 2112, 7168), upright(128, 192, SPLIT_K=3)), (problem(4096, 2112, 7168), upright(128, 192, SPLIT_K=2))),
    ("wgmma_shares", H200, (problem(128 * 124, 192, 8192), upright(128, 192, SPLIT_K=2)), (problem(128 * 112, 192, 8192), upright(128, 192, SPLIT_K=2))),
    ("wgmma_shares", H200, (problem(128 * 264, 192, 8192), upright(128, 192, SPLIT_K=2)), (problem(128 * 264, 192, 8192), upright(128, 192))),
    ("wgmma_shares", H200, (problem(128 * 700, 192, 8192), upright(128, 192, SPLIT_K=4)), (problem(128 * 436, 192, 8192), upright(128, 192, SPLIT_K=4))),
    ("wgmma_shares", H200, (problem(128 * 20, 192, 8192), upright(128, 192, SPLIT_K=4)), (problem(128 * 20, 192, 8192), upright(128, 192, SPLIT_K=6))),
    ("wgmma_shares", H200, (problem(100, 2112, 7168), swapped(104, 64, SPLIT_K=5)), (problem(100, 2112, 7168), swapped(104, 64, SPLIT_K=4))),
    ("wgmma_shares", H200, (problem(100, 2112, 7168), swapped(104, 64, SPLIT_K=3)), (problem(100, 2112, 7168), swapped(104, 64))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "gpu", "dropped", "kept"), CASES)
def test_drops_what_it_says_and_keeps_a_neighbour(
    rule: str, gpu: Gpu, dropped: tuple[GemmProblem, Config], kept: tuple[GemmProblem, Config]
) -> None:
    """At the border that the rule names, one side is dropped and the other kept."""
    assert RULES[rule](*dropped, gpu) is True
    assert RULES[rule](*kept, gpu) is False


def test_every_rule_is_tested() -> None:
    """The table above has every rule of the module."""
    assert {rule for rule, *_ in CASES} == {
        name for name, rule in RULES.items() if rule.__module__ == "genkern.space.rules.wgmma"
    }


@pytest.mark.parametrize("family", ["tiled", "tiled_swapped", "tiled_tma", "persistent_tma", "tiled_semaphore"])
def test_other_families_are_left_alone(family: str) -> None:
    """No rule of the Gluon families says anything of another family, whatever the config."""
    for config in (made(family, 16, 256, 128, 4, 16, 8, 2), made(family, 256, 256, 32, 1, 1, 4, 8)):
        for name, rule in RULES.items():
            if rule.__module__ == "genkern.space.rules.wgmma":
                assert not rule(problem(1, 16, 64, row_major_a=False), config, B200), name
