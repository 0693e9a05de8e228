"""Tests of genkern.search.cost_model.predict: bounds, order, and agreement with timings of a real GPU."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from forms import FORMS, made
from hypothesis import given
from hypothesis import strategies as st
from machines import known_gpus
from rooflines import roofline_us

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.ops.accumulate import as_full
from genkern.search.cost_model.predict import predict_us, promising_first

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(4096, 6144, 4096)
CONFIG = Config("tiled", 128, 128, 64, GROUP_SIZE_M=8, num_warps=8, num_stages=3)
RESOURCES = Resources(registers=110, spills=0, shared_bytes=98304, scratch_bytes=0)

sizes = st.integers(1, 20000)
types = st.sampled_from(["fp32", "fp16", "bf16", "int8", "fp8e4m3fn", "fp8e5m2fnuz"])
problems = st.builds(GemmProblem, M=sizes, N=sizes, K=sizes, dtype_a=types, dtype_b=types, bias=st.booleans())
configs = st.builds(
    made,
    st.sampled_from(sorted(FORMS)),
    BLOCK_SIZE_M=st.sampled_from([1, 4, 16, 32, 64, 128, 256]),
    BLOCK_SIZE_N=st.sampled_from([16, 32, 64, 128, 256]),
    BLOCK_SIZE_K=st.sampled_from([16, 32, 64, 128, 256]),
    GROUP_SIZE_M=st.sampled_from([1, 4, 8, 16, 32]),
    SPLIT_K=st.sampled_from([1, 2, 4, 8, 16, 64]),
    num_warps=st.sampled_from([1, 2, 4, 8, 16]),
    num_stages=st.integers(1, 6),
)
needs = st.builds(
    Resources,
    registers=st.none() | st.integers(16, 512),
    shared_bytes=st.none() | st.integers(0, 240_000),
    scratch_bytes=st.none() | st.integers(0, 4096),
)


@given(problem=problems, config=configs, resources=needs, gpu=st.sampled_from(known_gpus()))
def test_never_below_the_roofline(problem: GemmProblem, config: Config, resources: Resources, gpu: Gpu) -> None:
    """No config is predicted faster than peak compute and peak bandwidth allow, and every time is a number > 0."""
    time_us = predict_us(problem, config, resources, gpu)
    assert time_us >= roofline_us(problem, gpu) > 0
    assert time_us == predict_us(problem, config, resources, gpu)


@given(problem=problems, config=configs, resources=needs, more=st.integers(1, 1000))
def test_spills_cost(problem: GemmProblem, config: Config, resources: Resources, more: int) -> None:
    """Spilled registers never make a kernel faster."""
    base = dataclasses.replace(resources, scratch_bytes=resources.scratch_bytes or 0)
    spilled = dataclasses.replace(base, scratch_bytes=(base.scratch_bytes or 0) + more)
    assert predict_us(problem, config, spilled, H200) >= predict_us(problem, config, base, H200)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_partial_wave_takes_time(arch: str) -> None:
    """Each SM computes two or three tiles at the same time, and twelve in whole waves; the thirteenth takes longer."""
    gpu, config = gpu_for_arch(arch), Config("tiled", 64, 64, 64, num_warps=4, num_stages=3)
    needs = Resources(registers=128, shared_bytes=64 * 1024)
    sizes = [GemmProblem(64 * tiles, 64 * gpu.compute_units, 8192) for tiles in (12, 13)]
    whole_us, more_us = (predict_us(size, config, needs, gpu) for size in sizes)
    assert more_us > 1.1 * whole_us


def test_heavy_spills_cost_much() -> None:
    """A kernel that spills hundreds of registers is predicted several times slower."""
    spilled = dataclasses.replace(RESOURCES, scratch_bytes=2000)
    assert predict_us(PROBLEM, CONFIG, spilled, H200) > 3 * predict_us(PROBLEM, CONFIG, RESOURCES, H200)


def test_roofline_has_two_bounds() -> None:
    """A large square product is bound by compute, a thin one by memory; both figures are the textbook's."""
    assert roofline_us(GemmProblem(8192, 8192, 8192), H200) == pytest.approx(2 * 8192**3 / 989.4e6, rel=1e-3)
    thin_bytes = 2 * (4096 + 4096 * 4096 + 4096)
    assert roofline_us(GemmProblem(1, 4096, 4096), H200) == pytest.approx(thin_bytes / 4.8e6, rel=1e-6)


def test_fp8_uses_the_fp8_peak_where_there_is_one() -> None:
    """fp8 halves the compute bound on sm_90, and equals fp16 on gfx90a, which has no fp8."""

    def bound(arch: str, dtype: str) -> float:
        return roofline_us(GemmProblem(8192, 8192, 8192, dtype_a=dtype, dtype_b=dtype), gpu_for_arch(arch))

    assert bound("sm_90", "fp8e4m3fn") == pytest.approx(bound("sm_90", "bf16") / 2)
    assert bound("gfx90a", "fp8e4m3fn") == bound("gfx90a", "fp16")


def test_full_sums_of_fp8_cost_additions_where_nothing_hides_them() -> None:
    """A quarter of the products' time at most; two groups of warps take turns, and other GPUs add up so anyway."""
    fast = GemmProblem(4096, 8192, 8192, "a8w8", "fp8e4m3fn", "fp8e4m3fn")
    full, resources = as_full(fast), Resources()
    tile = dataclasses.replace(CONFIG, BLOCK_SIZE_N=256, BLOCK_SIZE_K=128)
    assert 1 < predict_us(full, tile, resources, H200) / predict_us(fast, tile, resources, H200) <= 1.25
    turns = Config("warp_specialized", 128, 176, 128, num_warps=8, num_stages=4)
    assert predict_us(full, turns, resources, H200) == predict_us(fast, turns, resources, H200)
    b200 = gpu_for_arch("sm_100")
    assert predict_us(full, tile, resources, b200) == predict_us(fast, tile, resources, b200)


def test_wave_quantisation() -> None:
    """One tile more than the units hold in a wave costs a whole further wave; filling that wave costs nothing."""
    one_wave = dataclasses.replace(RESOURCES, shared_bytes=200_000)
    times = []
    for tiles in (132, 133, 264):
        problem = GemmProblem(128, 128 * tiles, 4096)
        times.append(predict_us(problem, CONFIG, one_wave, H200))
    assert times[1] > 1.7 * times[0]
    assert times[2] == pytest.approx(times[1], rel=0.05)


def test_split_k_helps_only_where_units_idle() -> None:
    """SPLIT_K speeds up a product of few tiles and a long K, and slows down one that fills the GPU."""
    split = dataclasses.replace(CONFIG, SPLIT_K=8)
    long_k = GemmProblem(128, 512, 65536)
    assert predict_us(long_k, split, RESOURCES, H200) < predict_us(long_k, CONFIG, RESOURCES, H200) / 2
    assert predict_us(PROBLEM, split, RESOURCES, H200) > predict_us(PROBLEM, CONFIG, RESOURCES, H200)


def test_grouping_saves_traffic_that_the_cache_does_not() -> None:
    """Where A and B exceed the cache and memory is the bound, GROUP_SIZE_M = 8 reads less than 1."""
    slow_memory = dataclasses.replace(H200, memory_tb_per_s=0.5)
    problem = GemmProblem(32768, 32768, 4096)
    grouped, ungrouped = (dataclasses.replace(CONFIG, GROUP_SIZE_M=size) for size in (8, 1))
    assert predict_us(problem, grouped, RESOURCES, slow_memory) < predict_us(problem, ungrouped, RESOURCES, slow_memory)


def test_what_cannot_launch_takes_forever() -> None:
    """A kernel over the limits has an infinite time."""
    assert math.inf == predict_us(PROBLEM, CONFIG, Resources(shared_bytes=300_000), H200)


# Microseconds of 1024 x 6144 x 4096 on an H200 (bf16, Triton 3.6, CUDA graph, weights rotated cold), every 27th of 402
# configs: time, (BM, BN, BK, GROUP_SIZE_M, SPLIT_K, num_warps, num_stages), (registers, shared bytes, stack bytes).
TIMED = [
    (80.3, (128, 128, 64, 8, 1, 8, 3), (110, 98304, 0)),
    (119.7, (64, 128, 64, 4, 1, 4, 2), (118, 49152, 0)),
    (140.2, (256, 64, 32, 8, 2, 4, 3), (207, 61440, 0)),
    (153.8, (256, 128, 64, 8, 4, 8, 3), (207, 147456, 0)),
    (182.4, (128, 64, 32, 8, 4, 4, 4), (96, 49152, 0)),
    (205.6, (128, 64, 32, 4, 1, 4, 2), (96, 24576, 0)),
    (220.5, (64, 64, 32, 8, 4, 4, 4), (62, 32768, 0)),
    (237.2, (256, 32, 32, 1, 1, 4, 3), (117, 55296, 0)),
    (257.1, (256, 32, 32, 8, 4, 8, 3), (66, 55296, 0)),
    (286.5, (64, 32, 128, 8, 4, 8, 3), (48, 73728, 0)),
    (327.7, (32, 32, 64, 8, 1, 4, 2), (47, 8192, 0)),
    (382.8, (16, 256, 32, 4, 1, 4, 2), (109, 17408, 0)),
    (426.5, (128, 256, 128, 8, 1, 4, 2), (255, 196608, 968)),
    (482.7, (16, 64, 64, 8, 8, 4, 4), (54, 30720, 0)),
    (573.0, (16, 128, 32, 8, 8, 8, 2), (46, 9216, 0)),
]


def test_order_agrees_with_timings() -> None:
    """On timings of a real GPU, at least 9 of 10 pairs that differ by a quarter are predicted in their order."""
    problem = GemmProblem(1024, 6144, 4096)
    predicted = []
    for _, values, (registers, shared_bytes, scratch_bytes) in TIMED:
        resources = Resources(registers=registers, shared_bytes=shared_bytes, scratch_bytes=scratch_bytes)
        predicted.append(predict_us(problem, Config("tiled", *values), resources, H200))
    pairs = [(a, b) for a in range(len(TIMED)) for b in range(len(TIMED)) if TIMED[b][0] > 1.25 * TIMED[a][0]]
    right = sum(predicted[a] < predicted[b] for a, b in pairs)
    assert right >= 0.9 * len(pairs)


@given(problem=problems, chosen=st.lists(configs, max_size=12), gpu=st.sampled_from(known_gpus()))
def test_all_configs_are_put_in_order(problem: GemmProblem, chosen: list[Config], gpu: Gpu) -> None:
    """None is lost or doubled; siblings stand together, the group size nearest to 8 first, and its time decides: on
    GPUs with rates among the first of each tile.
    """

    def but_group_size(config: Config) -> Config:
        return dataclasses.replace(config, GROUP_SIZE_M=0)

    ordered = promising_first(problem, chosen, gpu)
    assert sorted(ordered, key=repr) == sorted(chosen, key=repr)
    families = [list(siblings) for _, siblings in itertools.groupby(ordered, but_group_size)]
    assert len(families) == len({but_group_size(config) for config in chosen})
    for siblings in families:
        distances = [abs(config.GROUP_SIZE_M - 8) for config in siblings]
        assert distances == sorted(distances)
    firsts = [siblings[0] for siblings in families]
    if gpu.rates is not None:
        of_tile: dict[object, Config] = {}
        for config in firsts:
            blocks = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K
            of_tile.setdefault((config.family, blocks, config.SPLIT_K > 1), config)
        firsts = list(of_tile.values())
    times_us = [predict_us(problem, config, Resources(), gpu) for config in firsts]
    assert times_us == sorted(times_us)
