"""Tests of genkern.space.rules.registry: each rule drops what it says and keeps a neighbour."""

# ruff: noqa: E501  one case a line reads better than wrapped ones

from __future__ import annotations

import dataclasses

import pytest
from forms import FORMS, made
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES, traits_of
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.sum_order import equal_shares
from genkern.space.rules.registry import RULE_NAMES, RULES, is_for, reason, rule_for

GROUP_SIZES = (1, 2, 4, 8, 16)
MI300X, H200, A100, B200 = (gpu_for_arch(arch) for arch in ("gfx942", "sm_90", "sm_80", "sm_100"))
LARGE = GemmProblem(4096, 4096, 4096)
SMALL = GemmProblem(16, 4096, 4096)


def amd(m: int = 64, n: int = 64, k: int = 64, **fields: object) -> Config:
    """An AMD config with a 32x32 instruction, unless told otherwise."""
    values = {"matrix_instr_nonkdim": 32, "kpack": 1} | fields
    return Config("tiled", m, n, k, **values)  # type: ignore[arg-type]


def nv(m: int = 64, n: int = 64, k: int = 64, **fields: object) -> Config:
    """An NVIDIA config of the tiled family."""
    return Config("tiled", m, n, k, **fields)  # type: ignore[arg-type]


def tma(m: int = 128, n: int = 128, k: int = 64, **fields: object) -> Config:
    """A config of the TMA family."""
    return Config("persistent_tma", m, n, k, **fields)  # type: ignore[arg-type]


def problem(m: int, n: int, k: int, **fields: object) -> GemmProblem:
    """A problem, bf16 unless told otherwise."""
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


INT4 = GemmProblem(64, 64, 1024, op="a16w4", dtype_b="int8")
FP32 = {"dtype_a": "fp32", "dtype_b": "fp32", "dtype_c": "fp32"}
INT8 = {"op": "a8w8", "dtype_a": "int8", "dtype_b": "int8"}


def specialized(m: int = 128, n: int = 128, k: int = 64, **fields: object) -> Config:
    """A config of persistent_tma_specialized."""
    return Config("persistent_tma", m, n, k, **fields, specialized=1)  # type: ignore[arg-type]


def own(family: str, m: int = 64, n: int = 64, k: int = 64, **fields: object) -> Config:
    """An NVIDIA config of the named family."""
    return made(family, m, n, k, **fields)  # type: ignore[arg-type]


GEMV = own("gemv", 1, 4, 512)
INT8_OPERANDS, COLUMN_A_INT8 = problem(64, 64, 64, **INT8), problem(96, 2112, 1008, row_major_a=False, **INT8)
ROW_B = problem(8, 4096, 4096, row_major_b=True)


def skinny(m: int = 8, n: int = 1, k: int = 1024, **fields: object) -> Config:
    """A config of skinny: 4 warps, so 1,024 elements of a row are 16 bytes a thread."""
    return own("skinny", m, n, k, **fields)


def skinny_dot(m: int = 8, n: int = 16, num_warps: int = 4, num_stages: int = 1) -> Config:
    """A config of skinny_dot."""
    return own("skinny_dot", m, n, 128 * num_warps, num_warps=num_warps, num_stages=num_stages)


def swapped(m: int = 16, n: int = 64, k: int = 64, **fields: object) -> Config:
    """A config with operands swapped."""
    return own("tiled_swapped", m, n, k, **fields)


# rule, GPU, (problem, config) that it drops, (problem, config) nearby that it keeps
CASES: list[tuple[str, Gpu, tuple[GemmProblem, Config], tuple[GemmProblem, Config]]] = [
    ("v34_mfma_size", MI300X, (problem(31, 64, 64), amd()), (problem(32, 64, 64), amd())),
    ("v34_mfma_size", MI300X, (problem(64, 31, 64), amd()), (problem(64, 31, 64), amd(matrix_instr_nonkdim=16))),
    ("v34_tile_elements", MI300X, (LARGE, amd(4, 8)), (LARGE, amd(8, 8))),
    ("v34_block_below_mfma", MI300X, (LARGE, amd(16, 64)), (LARGE, amd(32, 64))),
    ("v34_block_below_mfma", MI300X, (LARGE, amd(64, 16)), (LARGE, amd(64, 16, matrix_instr_nonkdim=16))),
    ("v34_one_block_is_enough", MI300X, (problem(32, 64, 64), amd(64)), (problem(33, 64, 64), amd(64))),
    ("v34_one_block_is_enough", MI300X, (problem(64, 32, 64), amd(64, 64)), (problem(64, 32, 64), amd(64, 32))),
    ("v34_block_over_twice", MI300X, (problem(31, 64, 64), amd(64)), (problem(32, 64, 64), amd(64))),
    ("v34_block_over_twice", MI300X, (problem(64, 1, 64), amd(64, 32)), (problem(64, 1, 64), amd(64, 16))),
    ("v34_split_k_unneeded", MI300X, (problem(64, 64, 2048), amd(SPLIT_K=2)), (problem(63, 64, 2048), amd(SPLIT_K=2))),
    ("v34_split_k_unneeded", MI300X, (problem(16, 64, 1024), amd(SPLIT_K=2)), (problem(16, 64, 1088), amd(SPLIT_K=2))),
    ("v34_split_k_uneven", MI300X, (problem(16, 64, 1088), amd(SPLIT_K=2)), (problem(16, 64, 1152), amd(SPLIT_K=2))),
    ("v34_split_k_uneven", MI300X, (problem(16, 64, 1088), amd(SPLIT_K=4)), (problem(16, 64, 1087), amd(SPLIT_K=1))),
    ("v34_group_m", MI300X, (problem(255, 64, 64), amd(GROUP_SIZE_M=4)), (problem(256, 64, 64), amd(GROUP_SIZE_M=4))),
    ("v34_group_m", MI300X, (problem(16, 64, 64), amd(GROUP_SIZE_M=2)), (problem(16, 64, 64), amd(GROUP_SIZE_M=1))),
    ("v34_lds", MI300X, (LARGE, amd(256, 256, 128)), (LARGE, amd(256, 256, 64))),
    ("v34_lds", MI300X, (LARGE, amd(128, 128, 128, num_stages=3)), (LARGE, amd(128, 128, 128, num_stages=2))),
    ("v34_lds", MI300X, (LARGE, amd(256, 64, 256, num_stages=1)), (LARGE, amd(128, 64, 256, num_stages=1))),
    ("v34_lds", MI300X, (LARGE, amd(256, 256, 128)), (problem(4096, 4096, 4096, **INT8), amd(256, 256, 128))),
    ("v34_large_gemm", MI300X, (problem(2048, 2048, 64), amd(32)), (problem(2047, 2048, 64), amd(32))),
    ("v34_large_gemm", MI300X, (LARGE, amd(64, 32, num_warps=4)), (LARGE, amd(64, 64, num_warps=4))),
    ("v34_large_gemm", MI300X, (LARGE, amd(64, 64, 32)), (LARGE, amd(64, 64, 64))),
    ("v34_large_gemm", MI300X, (LARGE, amd(num_warps=2)), (LARGE, amd(num_warps=4))),
    ("v34_large_gemm", MI300X, (problem(2112, 2048, 64), amd(128)), (problem(2176, 2048, 64), amd(128))),
    ("v34_large_gemm", MI300X, (problem(2048, 2112, 64), amd(64, 128)), (problem(2048, 2113, 64), amd(64, 128))),
    ("v2_mfma", MI300X, (problem(16, 64, 64), amd(32)), (problem(16, 64, 64), amd(16, 32, matrix_instr_nonkdim=16))),
    ("v2_mfma", MI300X, (LARGE, amd(16)), (LARGE, amd(32))),
    ("v2_mfma", MI300X, (LARGE, amd(matrix_instr_nonkdim=16)), (LARGE, amd())),
    ("v2_mfma", MI300X, (problem(64, 32, 64), amd(64, 64)), (problem(64, 32, 64), amd(64, 32))),
    ("v2_split_k_unneeded", MI300X, (LARGE, amd(SPLIT_K=2)), (SMALL, amd(SPLIT_K=2))),
    ("v2_split_k_uneven", MI300X, (problem(16, 64, 65), amd()), (problem(16, 64, 128), amd())),
    ("v2_split_k_uneven", MI300X, (problem(16, 64, 64), amd(SPLIT_K=2)), (problem(16, 64, 64), amd(SPLIT_K=1))),
    ("v2_group_m", MI300X, (problem(255, 64, 64), amd(GROUP_SIZE_M=4)), (problem(256, 64, 64), amd(GROUP_SIZE_M=4))),
    ("v2_lds", MI300X, (LARGE, amd(128, 16, 128)), (LARGE, amd(128, 16, 64))),
    ("v2_lds", MI300X, (LARGE, amd(16, 128, 128)), (LARGE, amd(16, 64, 128))),
    ("large_gemm", MI300X, (problem(2048, 2048, 64), amd(32)), (problem(2047, 2048, 64), amd(32))),
    ("large_gemm", MI300X, (LARGE, amd(64, 32, num_warps=4)), (LARGE, amd(64, 64, num_warps=4))),
    ("large_gemm", MI300X, (problem(2048, 2048, 33), amd(64, 64, 32)), (problem(2048, 2048, 32), amd(64, 64, 32))),
    ("large_gemm", MI300X, (LARGE, amd(num_warps=2)), (LARGE, amd(num_warps=4))),
    ("large_gemm", MI300X, (problem(2112, 2048, 64), amd(128)), (problem(2176, 2048, 64), amd(128))),
    ("large_gemm", MI300X, (problem(2048, 2112, 64), amd(64, 128)), (problem(2048, 2113, 64), amd(64, 128))),
    ("dot_needs_k32", H200, (problem(64, 64, 64, **INT8), nv(k=16)), (problem(64, 64, 64, **INT8), nv(k=32))),
    ("dot_needs_k32", H200, (problem(64, 64, 64, **INT8), nv(k=16)), (LARGE, nv(k=16))),
    ("accumulator_registers", H200, (LARGE, nv(128, 256, num_warps=4)), (LARGE, nv(128, 256, num_warps=8))),
    ("accumulator_registers", H200, (LARGE, nv(256, 256, num_warps=16)), (LARGE, nv(256, 128, num_warps=16))),
    ("accumulator_registers", H200, (LARGE, nv(128, 256, num_warps=4)), (LARGE, nv(128, 128, num_warps=4))),
    ("warps_starved", H200, (LARGE, nv(16, 32, num_warps=4)), (LARGE, nv(16, 64, num_warps=4))),
    ("warps_starved", H200, (LARGE, nv(64, 128, num_warps=16)), (LARGE, nv(128, 128, num_warps=16))),
    ("tile_over_problem", A100, (problem(16, 64, 64), nv(32)), (problem(17, 64, 64), nv(32))),
    ("tile_over_problem", A100, (problem(64, 64, 64), nv(64, 128)), (problem(64, 65, 64), nv(64, 128))),
    ("tile_over_problem", A100, (problem(64, 64, 64), nv(k=128)), (problem(64, 64, 65), nv(k=128))),
    ("tile_over_problem", A100, (problem(1, 1, 1), nv(16, 16, 64)), (problem(1, 1, 1), nv(16, 16, 32))),
    ("tile_over_problem_warpgroup", H200, (problem(16, 64, 64), nv(32)), (problem(16, 64, 64), nv(64))),
    ("tile_over_problem_warpgroup", H200, (problem(64, 64, 64), nv(128)), (problem(65, 64, 64), nv(128))),
    ("tile_over_problem_warpgroup", H200, (problem(64, 16, 64), nv(64, 32)), (problem(64, 17, 64), nv(64, 32))),
    ("tile_skewed", H200, (LARGE, nv(256, 16)), (LARGE, nv(256, 32))),
    ("tile_skewed", H200, (LARGE, nv(16, 256)), (SMALL, nv(16, 256))),
    ("tile_too_small", H200, (LARGE, nv(32, 32)), (LARGE, nv(64, 32))),
    ("tile_too_small", H200, (LARGE, nv(32, 32)), (problem(1024, 2048, 64), nv(32, 32))),
    ("split_k_fills", H200, (problem(1024, 2112, 4096), nv(128, 64, SPLIT_K=2)), (SMALL, nv(16, 128, SPLIT_K=2))),
    ("split_k_fills", H200, (SMALL, nv(16, 64, SPLIT_K=9)), (SMALL, nv(16, 64, SPLIT_K=8))),
    ("split_k_fills", H200, (LARGE, nv(SPLIT_K=2)), (LARGE, nv(SPLIT_K=1))),
    ("split_k_short", H200, (problem(16, 64, 127), nv(SPLIT_K=2)), (problem(16, 64, 128), nv(SPLIT_K=2))),
    ("split_k_short", H200, (problem(16, 64, 127), nv(SPLIT_K=2)), (problem(16, 64, 63), nv(SPLIT_K=1))),
    # 9 blocks of K: 5 splits get 2, 2, 2, 2, 1; 6 splits get 2, 2, 2, 2, 1, 0
    ("split_k_empty", H200, (problem(16, 64, 576), nv(SPLIT_K=6)), (problem(16, 64, 576), nv(SPLIT_K=5))),
    ("gemv_registers", H200, (problem(1, 64, 512), own("gemv", 1, 1, 512)), (problem(1, 64, 512), own("gemv", 1, 2, 512))),
    ("gemv_registers", H200, (problem(1, 64, 512), own("gemv", 1, 32, 512)), (problem(1, 64, 512), own("gemv", 1, 16, 512))),
    ("gemv_registers", H200, (LARGE, own("gemv", 1, 4, 8192, num_warps=16)), (LARGE, own("gemv", 1, 2, 8192, num_warps=16))),
    ("gemv_over_problem", H200, (problem(1, 64, 256), GEMV), (problem(1, 64, 257), GEMV)),
    ("tma_many_waves", H200, (problem(64, 64 * 265, 64), own("tiled_tma")), (problem(64, 64 * 264, 64), own("tiled_tma"))),
    ("tiled_beside_tma", H200, (problem(256, 4096, 1024), nv()), (problem(255, 4096, 2048), nv())),
    ("tiled_beside_tma", H200, (problem(1024, 1024, 1024), nv()), (problem(1024, 1024, 1023), nv())),
    ("tiled_beside_tma", H200, (problem(1024, 1024, 2056), nv()), (problem(1024, 1024, 2050), nv())),
    ("tiled_beside_tma", H200, (LARGE, nv()), (LARGE, own("persistent_tma"))),
    ("tiled_beside_tma", H200, (LARGE, nv()), (problem(4096, 4097, 4096), nv())),
    ("skinny_rows", H200, (problem(17, 64, 1024), skinny(16)), (problem(16, 64, 1024), skinny(16))),
    ("skinny_rows", H200, (problem(4, 64, 1024), skinny(8)), (problem(5, 64, 1024), skinny(8))),
    ("skinny_rows", H200, (problem(5, 64, 1024), skinny(4)), (problem(4, 64, 1024), skinny(4))),
    ("skinny_dot_rows", H200, (problem(65, 64, 1024), skinny_dot(64)), (problem(64, 64, 1024), skinny_dot(64))),
    ("skinny_dot_rows", H200, (problem(8, 64, 1024), skinny_dot(16)), (problem(9, 64, 1024), skinny_dot(16))),
    ("skinny_dot_rows", H200, (problem(9, 64, 1024), skinny_dot(8)), (problem(1, 64, 1024), skinny_dot(8))),
    ("skinny_dot_registers", H200, (INT4, skinny_dot(64, 64)), (INT4, skinny_dot(64, 32))),
    ("skinny_dot_registers", H200, (INT4, skinny_dot(8, 128, 16)), (INT4, skinny_dot(8, 64, 16))),
    ("skinny_dot_stages", H200, (INT4, skinny_dot(32, 16, 4, 2)), (INT4, skinny_dot(16, 16, 4, 2))),
    ("skinny_dot_stages", H200, (INT4, skinny_dot(8, 64, 4, 3)), (INT4, skinny_dot(8, 64, 4, 2))),
    ("skinny_registers", H200, (problem(8, 64, 1024), skinny(8, 4)), (problem(8, 64, 1024), skinny(8, 2))),
    ("skinny_registers", H200, (problem(1, 64, 1024), skinny(1, 16)), (problem(1, 64, 1024), skinny(1, 8))),
    ("skinny_registers", H200, (problem(1, 64, 512), skinny(1, 1, 512)), (problem(1, 64, 512), skinny(1, 2, 512))),
    ("skinny_rows_of_b", H200, (SMALL, skinny(k=512)), (SMALL, skinny(k=1024))),
    ("skinny_rows_of_b", H200, (SMALL, skinny(n=32, k=16)), (ROW_B, skinny(n=32, k=16))),
    ("skinny_rows_of_b", H200, (ROW_B, skinny(n=16, k=16)), (ROW_B, skinny(n=32, k=16))),
    ("skinny_rows_of_b", MI300X, (SMALL, skinny(num_warps=4)), (SMALL, skinny(num_warps=2))),
    ("skinny_over_problem", H200, (problem(8, 64, 512), skinny()), (problem(8, 64, 513), skinny())),
    ("skinny_over_problem", H200, (problem(8, 32, 1024), skinny(n=64)), (problem(8, 33, 1024), skinny(n=64))),
    ("swapped_large_m", H200, (problem(129, 64, 64), swapped(128)), (problem(128, 64, 64), swapped(64))),
    ("swapped_large_m", H200, (problem(33, 64, 64), swapped()), (problem(32, 64, 64), swapped())),
    ("swapped_large_m", H200, (problem(8, 64, 64), swapped(32)), (problem(8, 64, 64), swapped(16))),
    ("swapped_large_m", MI300X, (problem(8, 64, 64), swapped(32)), (problem(8, 64, 64), swapped(16))),
    ("swapped_large_m", H200, (problem(16, 64, 64), swapped(n=128)), (problem(16, 65, 64), swapped(n=128))),
    ("swapped_large_m", H200, (problem(16, 64, 64), swapped(k=128)), (problem(16, 64, 65), swapped(k=128))),
    ("swapped_instruction", H200, (SMALL, swapped(n=32)), (SMALL, swapped(8, 64))),
    ("swapped_instruction", H200, (SMALL, swapped(num_warps=2)), (SMALL, swapped(num_warps=4))),
    ("swapped_instruction", MI300X, (SMALL, swapped(8)), (SMALL, swapped(16))),
    ("swapped_instruction", A100, (SMALL, swapped(n=32)), (SMALL, swapped(n=32, num_warps=2))),
    ("shared_memory_warpgroup", H200, (SMALL, swapped(16, 256, 128, num_stages=4)), (SMALL, swapped(16, 256, 128, num_stages=3))),
    ("stages_over_loop", H200, (problem(64, 64, 128), nv(num_stages=3)), (problem(64, 64, 129), nv(num_stages=3))),
    ("stages_over_loop", H200, (SMALL, nv(SPLIT_K=32, num_stages=3)), (SMALL, nv(SPLIT_K=16, num_stages=3))),
    ("stages_over_loop", H200, (problem(64, 64, 16), nv(num_stages=3)), (problem(64, 64, 16), nv(num_stages=2))),
    ("shared_memory_mma", A100, (LARGE, nv(128, 256, 64, num_stages=5)), (LARGE, nv(128, 256, 64, num_stages=4))),
    ("shared_memory_mma", A100, (problem(64, 64, 64, **FP32), nv(128, 128, 64, num_stages=4)), (problem(64, 64, 64, **FP32), nv(128, 128, 64, num_stages=3))),
    ("shared_memory_warpgroup", H200, (LARGE, nv(128, 256, 64, num_stages=5)), (LARGE, nv(128, 256, 64, num_stages=4))),
    ("shared_memory_warpgroup", H200, (LARGE, tma(128, 256, num_stages=4)), (LARGE, nv(128, 256, num_stages=4))),
    ("shared_memory_warpgroup", B200, (LARGE, tma(256, 128, num_stages=4)), (LARGE, tma(256, 128, num_stages=3))),
    ("warpgroup_needs_4_warps", H200, (LARGE, nv(64, num_warps=2)), (LARGE, nv(32, num_warps=2))),
    ("warpgroup_needs_4_warps", H200, (LARGE, nv(64, num_warps=2)), (LARGE, nv(64, num_warps=4))),
    ("warpgroup_needs_64_rows", H200, (problem(65, 64, 64), nv(32)), (problem(64, 64, 64), nv(32))),
    ("warpgroup_needs_64_rows", H200, (problem(65, 64, 64), nv(32)), (problem(65, 64, 64), nv(64))),
    ("block_k_thin", H200, (problem(128, 64, 64), nv(k=16)), (problem(129, 64, 64), nv(k=16))),
    ("block_k_thin", H200, (problem(1, 64, 64, **INT8), nv(k=32)), (problem(1, 64, 64), nv(k=32))),
    ("block_k_thin", H200, (problem(1, 64, 33, **INT8), nv(k=32)), (problem(1, 64, 32, **INT8), nv(k=32))),
    ("specialized_without_tcgen05", B200, (LARGE, specialized(32)), (LARGE, specialized(64))),
    ("specialized_without_tcgen05", B200, (LARGE, specialized(num_warps=2)), (LARGE, specialized(num_warps=4))),
    ("specialized_without_tcgen05", B200, (LARGE, specialized(num_warps=16)), (LARGE, specialized(num_warps=8))),
    ("specialized_without_tcgen05", B200, (problem(64, 64, 64, **FP32), specialized()), (problem(64, 64, 64, **FP32), tma())),
    ("specialized_without_tcgen05", H200, (LARGE, specialized()), (LARGE, tma())),
    ("shared_memory_warpgroup", B200, (LARGE, specialized(256, 128, num_stages=4)), (LARGE, specialized(256, 128, num_stages=3))),
    ("group_m_redundant", H200, (problem(256, 64, 64), nv(GROUP_SIZE_M=8)), (problem(256, 64, 64), nv(GROUP_SIZE_M=4))),
    ("group_m_redundant", H200, (problem(257, 9, 9), nv(GROUP_SIZE_M=16)), (problem(257, 9, 9), nv(GROUP_SIZE_M=8))),
    ("group_m_redundant", H200, (problem(1, 64, 64), nv(GROUP_SIZE_M=2)), (problem(1, 64, 64), nv(GROUP_SIZE_M=1))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "gpu", "dropped", "kept"), CASES)
def test_drops_what_it_says_and_keeps_a_neighbour(
    rule: str, gpu: Gpu, dropped: tuple[GemmProblem, Config], kept: tuple[GemmProblem, Config]
) -> None:
    """At the border that the rule names, one side is dropped and the other kept."""
    drop = rule_for(rule, GROUP_SIZES)
    assert is_for(rule, traits_of(dropped[1]))
    assert drop(*dropped, gpu) is True
    assert not (is_for(rule, traits_of(kept[1])) and drop(*kept, gpu))


def test_every_rule_is_tested() -> None:
    """The table above has every rule but those in a file of their own and the one that tune_gemm never reaches."""
    own_file = ("genkern.space.rules.amd", "genkern.space.rules.cute", "genkern.space.rules.wgmma")
    elsewhere = {name for name, rule in RULES.items() if rule.__module__ in own_file} | {
        "dot_for_one_row",
        "not_deterministic",
    }
    assert {rule for rule, *_ in CASES} | elsewhere | {"v34_mfma4_block_k"} == set(RULE_NAMES)


def test_sums_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """--deterministic drops a family that adds floats up in whatever order; int32 sums are exact in any."""
    varying = Family("varying", dataclasses.replace(FORMS["tiled"], deterministic=False))
    monkeypatch.setitem(FAMILIES, varying.name, varying)
    drop = rule_for("not_deterministic", GROUP_SIZES)
    assert drop(LARGE, Config("varying", 64, 64, 64), H200) is True
    assert drop(INT8_OPERANDS, Config("varying", 64, 64, 64), H200) is False
    assert drop(LARGE, nv(), H200) is False


@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from([16, 32, 64]))
def test_mfma4_rule_is_dead(m: int, n: int, block_k: int) -> None:
    """tune_gemm never chooses 4x4 instructions, so its second rule drops nothing."""
    drop = rule_for("v34_mfma4_block_k", GROUP_SIZES)
    assert drop(problem(m, n, 64), amd(k=block_k, matrix_instr_nonkdim=16), MI300X) is False


def test_a_smaller_device_limit_drops_more() -> None:
    """The limits come from the GPU record, not from the rules."""
    small = dataclasses.replace(MI300X, shared_bytes_per_block=32768)
    config = amd(128, 128, 128)
    drop = rule_for("v34_lds", GROUP_SIZES)
    assert (drop(LARGE, config, MI300X), drop(LARGE, config, small)) == (False, True)


# metadata.shared of the tiled and persistent TMA kernels, bf16, as Triton 3.7 compiled them.
COMPILED = [
    ("shared_memory_mma", A100, nv(128, 128, 64, num_warps=4, num_stages=2), 32768),
    ("shared_memory_mma", A100, nv(128, 128, 64, num_warps=4, num_stages=4), 98304),
    ("shared_memory_mma", A100, nv(16, 64, 128, num_warps=4, num_stages=4), 61440),
    ("shared_memory_warpgroup", H200, nv(128, 128, 64, num_warps=4, num_stages=3), 98304),
    ("shared_memory_warpgroup", H200, nv(64, 64, 32, num_warps=2, num_stages=3), 16384),
    ("shared_memory_warpgroup", H200, nv(32, 64, 64, num_warps=4, num_stages=3), 24576),
    ("shared_memory_warpgroup", H200, nv(64, 128, 256, num_warps=4, num_stages=2), 196608),
    ("shared_memory_warpgroup", H200, tma(128, 256, 64, num_warps=8, num_stages=3), 213016),
    ("shared_memory_warpgroup", H200, tma(16, 64, 128, num_warps=4, num_stages=3), 43024),
    ("shared_memory_warpgroup", H200, tma(128, 32, 32, num_warps=8, num_stages=6), 69680),
    ("shared_memory_warpgroup", B200, nv(256, 128, 64, num_warps=8, num_stages=4), 196624),
    ("shared_memory_warpgroup", B200, tma(128, 256, 64, num_warps=8, num_stages=3), 213040),
    ("shared_memory_warpgroup", B200, specialized(128, 256, 64, num_warps=8, num_stages=3), 213092),
    ("shared_memory_warpgroup", B200, specialized(128, 256, 64, num_warps=4, num_stages=2), 163908),
    ("shared_memory_warpgroup", B200, specialized(256, 128, 32, num_warps=4, num_stages=6), 213124),
]


@pytest.mark.parametrize(("rule", "gpu", "config", "compiled_bytes"), COMPILED)
def test_shared_memory_is_what_triton_allocates(rule: str, gpu: Gpu, config: Config, compiled_bytes: int) -> None:
    """The estimate is within 128 bytes of what the compiled kernel asks for."""
    drop = rule_for(rule, GROUP_SIZES)
    tight = dataclasses.replace(gpu, shared_bytes_per_block=compiled_bytes - 129)
    roomy = dataclasses.replace(gpu, shared_bytes_per_block=compiled_bytes + 128)
    assert (drop(LARGE, config, tight), drop(LARGE, config, roomy)) == (True, False)


@pytest.mark.parametrize(("release", "dropped"), [((3, 6), True), ((3, 8), True), ((3, 9), False)])
def test_int8_by_tcgen05_depends_on_triton(
    monkeypatch: pytest.MonkeyPatch, release: tuple[int, int], dropped: bool
) -> None:
    """Triton multiplies int8 by tcgen05 from 3.9 on, and by mma.sync before; fp8 by tcgen05 in all releases."""
    monkeypatch.setattr("genkern.space.rules.nvidia.triton_release", lambda: release)
    drop = rule_for("specialized_without_tcgen05", GROUP_SIZES)
    fp8 = problem(64, 64, 64, op="a8w8", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn")
    assert (drop(INT8_OPERANDS, specialized(), B200), drop(fp8, specialized(), B200)) == (dropped, False)
    # Bytes of two numbers are no integers.
    packed = problem(64, 64, 64, op="a4w4_blockscale", dtype_a="int8", dtype_b="int8")
    assert not drop(packed, specialized(), B200)


def v34(p: GemmProblem, c: Config, element_bytes: int, lds_bytes: int) -> bool:
    """tune_gemm v3.4's prune_configs, written independently: True when the config is dropped."""
    mfma = 16 if p.M < 32 or p.N < 32 else 32
    instruction = c.matrix_instr_nonkdim
    for block, size in ((c.BLOCK_SIZE_M, p.M), (c.BLOCK_SIZE_N, p.N)):
        if block < instruction or (size <= instruction and block != instruction) or (block > 2 * size and block != 16):
            return True
    if instruction > mfma or c.BLOCK_SIZE_M * c.BLOCK_SIZE_N < 64:
        return True
    if c.SPLIT_K != 1 and not ((p.M < 64 or p.N < 64) and p.K > 1024 and p.K % (c.SPLIT_K * c.BLOCK_SIZE_K) == 0):
        return True
    if c.GROUP_SIZE_M != 1 and c.GROUP_SIZE_M * c.BLOCK_SIZE_M > p.M:
        return True
    if (c.BLOCK_SIZE_M + c.BLOCK_SIZE_N) * c.BLOCK_SIZE_K * element_bytes > lds_bytes:
        return True
    large = p.M >= 2048 and p.N >= 2048
    blocks = (c.BLOCK_SIZE_M, c.BLOCK_SIZE_N, c.BLOCK_SIZE_K)
    return large and (min(blocks) < 64 or c.num_warps < 4 or p.M % blocks[0] != 0 or p.N % blocks[1] != 0)


BLOCKS = st.sampled_from([16, 32, 64, 128, 256])
SIZES = st.one_of(st.integers(1, 2047), st.integers(32, 200).map(lambda number: number * 64))


@given(
    st.builds(GemmProblem, SIZES, SIZES, st.integers(1, 40).map(lambda number: number * 240)),
    st.builds(
        Config,
        st.just("tiled"),
        BLOCKS,
        BLOCKS,
        BLOCKS,
        st.sampled_from([1, 2, 4, 8, 16, 32]),
        st.sampled_from([1, 1, 2, 5, 24]),
        st.sampled_from([1, 2, 4, 8]),
        st.just(2),
        matrix_instr_nonkdim=st.sampled_from([16, 32]),
        kpack=st.just(1),
    ),
    st.sampled_from(["gfx942", "gfx950"]),
    st.booleans(),
)
@settings(max_examples=repeats(200, 600), deadline=None)
def test_v34_rules_together(size: GemmProblem, config: Config, arch: str, eight_bit: bool) -> None:
    """The eleven rules drop a config exactly when v3.4 does, for sizes that v3.4 can tune at all."""
    gpu = gpu_for_arch(arch)
    typed = dataclasses.replace(size, **INT8) if eight_bit else size  # type: ignore[arg-type]
    rules = [rule_for(name, GROUP_SIZES) for name in RULE_NAMES if name.startswith("v34_")]
    assert len(rules) == 11
    expected = v34(typed, config, 1 if eight_bit else 2, gpu.shared_bytes_per_block)
    assert any(drop(typed, config, gpu) for drop in rules) is expected


def test_a_split_of_k_with_an_empty_part_is_dropped() -> None:
    """And no other one: the rule and the kernels divide K alike."""
    drops = rule_for("split_k_empty", GROUP_SIZES)
    for blocks in range(1, 30):
        dropped = [splits for splits in range(1, 20) if drops(problem(16, 64, 64 * blocks), nv(SPLIT_K=splits), H200)]
        assert dropped == [splits for splits in range(1, 20) if len(equal_shares(64 * blocks, 64, splits)) < splits]


@given(st.integers(1, 5000), st.sampled_from([16, 64, 256]), st.sets(st.integers(1, 64), min_size=1))
def test_one_covering_group_size_stays(m: int, block_m: int, group_sizes: set[int]) -> None:
    """Of the group sizes that cover all tiles along M exactly one stays, and every smaller one does."""
    drop = rule_for("group_m_redundant", sorted(group_sizes, reverse=True))
    tiles = -(-m // block_m)
    kept = {g for g in group_sizes if not drop(problem(m, 64, 64), nv(block_m, GROUP_SIZE_M=g), H200)}
    assert kept >= {g for g in group_sizes if g < tiles}
    assert len([g for g in kept if g >= tiles]) == (1 if max(group_sizes) >= tiles else 0)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_every_rule_has_a_reason_and_a_source(name: str) -> None:
    """A rule's docstring has a first line short enough for a table, and says where the rule comes from."""
    text = rule_for(name, GROUP_SIZES).__doc__ or ""
    assert 10 < len(reason(name)) <= 110
    assert reason(name).endswith(".")
    source = {"v34": "tune_gemm v3.4 rule", "v2": "tune_gemm v2"}.get(name.split("_")[0], "genkern")
    assert source in text
