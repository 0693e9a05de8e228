"""Tests of genkern.search.cost_model.loads: rows off their alignment cost time, as does a loop without a pipeline."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from machines import known_gpus
from test_predict import configs, needs, problems

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.loads import is_pipelined
from genkern.search.cost_model.predict import predict_us

Need = tuple[int, int, int]
# Registers, shared bytes and stack bytes of a tile on gfx942 and on sm_90 (Triton 3.7.1, bf16, M = N = 4096), for
# K = 4096 and for K = 4097, whose loads Triton does not pipeline: (BM, BN, BK, GROUP_SIZE_M, SPLIT_K, num_warps,
# num_stages).
UNALIGNED = [
    ("gfx942", (128, 128, 64, 8, 1, 4, 2), (196, 32768, 0), (162, 16384, 0)),
    ("gfx942", (256, 128, 64, 8, 1, 8, 2), (182, 49152, 0), (144, 32768, 0)),
    ("gfx942", (64, 64, 64, 8, 1, 4, 2), (88, 16384, 0), (70, 8192, 0)),
    ("gfx942", (128, 128, 32, 8, 1, 4, 3), (128, 32768, 0), (176, 8192, 0)),
    ("gfx942", (16, 64, 128, 8, 1, 4, 2), (96, 20480, 0), (78, 16384, 0)),
    ("gfx942", (256, 256, 32, 8, 1, 8, 2), (212, 32768, 0), (254, 16384, 20)),
    ("sm_90", (128, 128, 64, 8, 1, 4, 2), (185, 65536, 0), (255, 32768, 1256)),
    ("sm_90", (64, 64, 64, 8, 1, 4, 2), (64, 32768, 0), (244, 16384, 0)),
    ("sm_90", (16, 64, 128, 8, 1, 4, 2), (56, 20480, 0), (218, 20480, 0)),
]


@pytest.mark.parametrize(("arch", "values", "aligned", "unaligned"), UNALIGNED)
@pytest.mark.parametrize("size", [(4096, 4096), (16, 4096), (1024, 6144), (256, 2112), (4097, 8191)], ids=str)
def test_rows_off_their_alignment_are_not_faster(
    arch: str,
    values: tuple[int, ...],
    aligned: tuple[int, int, int],
    unaligned: tuple[int, int, int],
    size: tuple[int, int],
) -> None:
    """A loop that is not pipelined gains nothing from the LDS that it leaves; with binaries and without."""
    gpu, config = gpu_for_arch(arch), Config("tiled", *values)
    known = [Resources(registers=need[0], shared_bytes=need[1], scratch_bytes=need[2]) for need in (aligned, unaligned)]
    for before, after in (known, [Resources(), Resources()]):
        times_us = [predict_us(GemmProblem(*size, k), config, need, gpu) for k, need in ((4096, before), (4097, after))]
        assert times_us[1] >= times_us[0]


@given(problem=problems, config=configs, resources=needs, gpu=st.sampled_from(known_gpus()))
def test_more_of_k_is_not_faster(problem: GemmProblem, config: Config, resources: Resources, gpu: Gpu) -> None:
    """The next smaller K whose rows are aligned is predicted at most as long, whatever the binary needs."""
    assume(problem.K >= 16)
    smaller = dataclasses.replace(problem, K=problem.K // 16 * 16)
    assert predict_us(smaller, config, resources, gpu) <= predict_us(problem, config, resources, gpu) * (1 + 1e-9)


def test_narrow_loads_take_longer() -> None:
    """Of two sizes that differ in their alignment alone; a family with TMA has no rows like that."""
    deep = Config("tiled", 128, 128, 64, 8, 1, 4, 3)
    for arch in ("gfx942", "sm_90"):
        times_us = [predict_us(GemmProblem(1024, 1024, k), deep, Resources(), gpu_for_arch(arch)) for k in (8192, 8191)]
        assert times_us[1] > 1.2 * times_us[0]


@pytest.mark.parametrize(
    ("arch", "k", "dtype", "pipelined"),
    [
        ("gfx942", 4112, "bf16", True),
        ("gfx942", 4104, "bf16", True),
        ("gfx942", 4098, "bf16", True),
        ("gfx942", 4098, "fp8e4m3fnuz", False),
        ("gfx942", 4097, "bf16", False),
        ("gfx942", 4097, "fp32", True),
        ("gfx950", 4097, "bf16", True),
        ("gfx1201", 4097, "bf16", True),
        ("sm_90", 4098, "bf16", True),
        ("sm_90", 4097, "bf16", False),
    ],
)
def test_what_is_pipelined_is_what_triton_pipelines(arch: str, k: int, dtype: str, pipelined: bool) -> None:
    """As Triton 3.7.1's binaries show by the shared memory or LDS that they take."""
    problem = GemmProblem(4096, 4096, k, dtype_a=dtype, dtype_b=dtype)
    assert is_pipelined(problem, Config("tiled", 64, 64, 64, num_stages=3), gpu_for_arch(arch)) is pipelined
    assert not is_pipelined(problem, Config("tiled", 64, 64, 64, num_stages=1), gpu_for_arch(arch))
