"""Tests of genkern.kernels.legality: nothing that is refused would do, and what is let through does, rules or not."""

# ruff: noqa: E501  one case a line reads better than wrapped ones
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from forms import FORMS, made
from long_tests import repeats
from random_gemms import random_config, random_problem

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable, tables_of
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu, gpu_for_arch, known_archs
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.kernels import legality
from genkern.kernels.catalogue import traits_of
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal, legal_problem, of_single_configs, refusals, require_legal
from genkern.ops.op import get_op
from genkern.space.prune import prune
from genkern.space.space import FamilySpace, Space

H200, B200, A100, MI300X = (gpu_for_arch(arch) for arch in ("sm_90", "sm_100", "sm_80", "gfx942"))
LARGE = GemmProblem(4096, 4096, 4096)
INT8, FP32_OUT = {"op": "a8w8", "dtype_a": "int8", "dtype_b": "int8"}, GemmProblem(4096, 4096, 4096, dtype_c="fp32")
INT4 = {"op": "a16w4", "dtype_b": "int8"}
MXFP4 = {"op": "a4w4_blockscale", "dtype_a": "int8", "dtype_b": "int8"}
BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
CLUSTER = Config("warp_specialized", 64, 64, 64, num_stages=4, cluster_k=2, swapped=1)


def problem(m: int, n: int, k: int, **fields: object) -> GemmProblem:
    """A problem, bf16 unless told otherwise."""
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


def tile(stem: str, m: int = 64, n: int = 64, k: int = 64, **fields: object) -> Config:
    """A config of the form."""
    return made(stem, m, n, k, **fields)  # type: ignore[arg-type]


# GPU, words of the reason, (problem, config) that is refused, (problem, config) nearby that is not
CASES: list[tuple[Gpu, str, tuple[GemmProblem, Config], tuple[GemmProblem, Config]]] = [
    (H200, "one row", (problem(64, 64, 512), tile("gemv", 1, 4, 512)), (problem(1, 64, 512), tile("gemv", 1, 4, 512))),
    (H200, "along K", (problem(1, 64, 512, row_major_b=True), tile("gemv", 1)), (problem(1, 64, 512), tile("gemv", 1))),
    (H200, "elements", (problem(1, 512, 8192), tile("gemv", 1, 256, 8192)), (problem(1, 512, 8192), tile("gemv", 1, 128, 8192))),
    (H200, "elements", (LARGE, tile("skinny", 16, 128, 1024)), (LARGE, tile("skinny", 16, 64, 1024))),
    (H200, "from 1 to 16", (LARGE, tile("skinny", 32)), (LARGE, tile("skinny", 16))),
    (H200, "rows of tiles", (problem(70_000, 64, 64), tile("skinny", 1)), (problem(70_000, 64, 64), tile("skinny", 2))),
    (A100, "needs TMA, which sm_80 does not have", (LARGE, tile("tiled_tma")), (LARGE, tile("tiled"))),
    (MI300X, "TMA", (LARGE, tile("persistent_tma")), (LARGE, tile("tiled"))),
    (H200, "rows of A", (problem(64, 64, 4100), tile("tiled_tma")), (problem(64, 64, 4104), tile("tiled_tma"))),
    (H200, "rows of A", (problem(60, 64, 72, row_major_a=False), tile("tiled_tma")), (problem(60, 64, 72), tile("tiled_tma"))),
    (H200, "rows of A", (problem(64, 64, 4104, **INT8), tile("tiled_tma")), (problem(64, 64, 4112, **INT8), tile("tiled_tma"))),
    (H200, "rows of B", (problem(64, 68, 72, row_major_b=True), tile("tiled_tma")), (problem(64, 68, 72), tile("tiled_tma"))),
    # tiled_tma stores C through pointers.
    (H200, "rows of C", (problem(64, 68, 4096), tile("persistent_tma")), (problem(64, 68, 4096), tile("tiled_tma"))),
    (H200, "rows of C", (problem(64, 68, 4096), tile("warp_specialized")), (problem(64, 72, 4096), tile("warp_specialized"))),
    (H200, "shorter", (problem(96, 96, 96, row_major_a=False, **INT8), tile("tiled_tma_swapped", 8)),
     (problem(96, 96, 96, row_major_a=False), tile("tiled_tma_swapped", 8))),
    (H200, "8-bit", (problem(64, 64, 64, **INT8), tile("tiled", k=16)), (problem(64, 64, 64, **INT8), tile("tiled", k=32))),
    (H200, "8-bit", (problem(64, 64, 64, **INT8), tile("tiled", k=16)), (problem(64, 64, 64, **INT8), tile("skinny", 16, k=16))),
    (MI300X, "threads", (LARGE, tile("tiled", num_warps=32)), (LARGE, tile("tiled", num_warps=16))),
    (H200, "threads", (LARGE, tile("warp_specialized", 256, num_warps=32)), (LARGE, tile("tiled", 256, num_warps=32))),
    (H200, "power of two", (LARGE, tile("tiled", num_warps=6)), (LARGE, tile("tiled", num_warps=8))),
    (H200, "power of two", (LARGE, tile("tiled", 48)), (LARGE, tile("tiled", 64))),
    (H200, "neither xcd_remap", (LARGE, tile("tiled_semaphore", cache_modifier=".cg")), (LARGE, tile("tiled", cache_modifier=".cg"))),
    (H200, "gemv has no parameter cache_modifier", (problem(1, 64, 512), tile("gemv", 1, cache_modifier=".cg")), (problem(1, 64, 512), tile("gemv", 1))),
    (H200, "has no parameter swapped", (LARGE, Config("persistent_tma", 64, 64, 64, swapped=1)), (LARGE, tile("tiled_tma_swapped"))),
    (H200, "cluster 4x1 is not one of", (LARGE, Config("warp_specialized", 64, 64, 64, num_stages=4, cluster="4x1")), (LARGE, tile("warp_specialized", num_stages=4))),
    (H200, "does not split", (LARGE, tile("persistent_tma", SPLIT_K=2)), (LARGE, tile("tiled_tma", SPLIT_K=2))),
    (H200, "below 1", (LARGE, tile("tiled", SPLIT_K=0)), (LARGE, tile("tiled", SPLIT_K=1))),
    (H200, "below 1", (LARGE, tile("tiled", GROUP_SIZE_M=0)), (LARGE, tile("tiled", GROUP_SIZE_M=1))),
    (H200, "second dimension", (problem(64, 64, 64), tile("tiled", 16, 16, SPLIT_K=65_536)), (problem(64, 64, 64), tile("tiled", 16, 16, SPLIT_K=65_535))),
    (H200, "32 bits", (problem(16, 2**20, 64), tile("tiled", 16, 16, GROUP_SIZE_M=2**15)), (problem(16, 2**20, 64), tile("tiled", 16, 16, GROUP_SIZE_M=2**14))),
    (H200, "32 bits", (problem(2**20, 2**20, 64), tile("tiled", 16, 16)), (problem(2**20, 2**20, 64), tile("tiled", 64, 64))),
    (H200, "32 bits", (problem(16, 64, 2**30), tile("tiled_semaphore", k=16, SPLIT_K=32)), (problem(16, 64, 2**30), tile("tiled_semaphore", k=16, SPLIT_K=31))),
    (H200, "beyond", (problem(16, 16, MAX_DIMENSION), tile("tiled", 16, 16, 1024, SPLIT_K=512)), (problem(16, 16, MAX_DIMENSION), tile("tiled", 16, 16, 64, SPLIT_K=2**8))),
    # 133 * 112 tiles * 2**20 blocks do not fit 32 bits.
    (H200, "shared tiles", (problem(128 * 112, 192, 2**26), tile("warp_specialized", 128, 192, SPLIT_K=2)), (problem(128 * 112, 192, 2**22), tile("warp_specialized", 128, 192, SPLIT_K=2))),
    (MI300X, "HIP", (problem(2**17, 2**17, 64), tile("tiled", 16, 16, num_warps=1)), (problem(2**17, 2**17, 64), tile("tiled", 16, 32, num_warps=1))),
    (H200, "more registers", (LARGE, tile("tiled", 256, 256, num_warps=16)), (LARGE, tile("tiled", 256, 128, num_warps=16))),
    (H200, "more registers", (LARGE, tile("tiled", 256, 256, num_warps=16)), (problem(64, 64, 64, dtype_a="fp32", dtype_b="fp32"), tile("tiled", 256, 256, num_warps=16))),
    (B200, "tensor memory", (LARGE, tile("persistent_tma", 256, 256, num_warps=8)), (LARGE, tile("tiled", 256, 256, num_warps=8))),
    (B200, "tensor memory", (LARGE, tile("tiled", 512, 256, num_warps=8)), (LARGE, tile("tiled", 128, 512, num_warps=8))),
    (B200, "tensor memory", (LARGE, tile("persistent_tma", 128, 512)), (LARGE, tile("persistent_tma", 64, 512))),
    (B200, "tensor memory", (LARGE, tile("persistent_tma", 256, 256)), (LARGE, tile("persistent_tma", 256, 256, num_stages=1))),
    (B200, "four warps", (LARGE, tile("persistent_tma_specialized", num_warps=2)), (LARGE, tile("persistent_tma_specialized", num_warps=4))),
    (H200, "contiguous along K", (problem(64, 64, 128, row_major_b=True, **INT8), tile("warp_specialized", k=128)), (problem(64, 64, 128, **INT8), tile("warp_specialized", k=128))),
    (H200, "contiguous along K", (problem(64, 64, 128, row_major_a=False, **INT8), tile("warp_specialized", k=128)), (problem(64, 64, 128, row_major_a=False), tile("warp_specialized", k=128))),
    (H200, "columns that a cluster's programs", (problem(64, 64, 64, row_major_b=True), tile("warp_specialized_2x1")), (problem(64, 64, 64, row_major_b=True), tile("warp_specialized_2x1", 64, 112))),
    (H200, "rows that a cluster's programs", (problem(64, 64, 64, row_major_a=False), tile("warp_specialized_1x2")), (problem(64, 64, 64), tile("warp_specialized_1x2"))),
    (H200, "one buffer at a time", (LARGE, tile("warp_specialized_2x1", k=128)), (LARGE, tile("warp_specialized_2x1"))),
    (H200, "8 or 16 bits", (problem(64, 64, 64, dtype_a="fp32", dtype_b="fp32"), tile("warp_specialized")), (LARGE, tile("warp_specialized"))),
    (H200, "the loop over K", (problem(128, 128, 256, op="a8w8_blockscale", dtype_a="int8", dtype_b="int8"), tile("warp_specialized_2x1", k=128)),
     (problem(128, 128, 256, op="a8w8_blockscale", dtype_a="int8", dtype_b="int8"), tile("warp_specialized", k=128))),
    (H200, "eight columns at a time", (problem(128, 128, 256, op="a8w8_blockscale", dtype_a="int8", dtype_b="int8", own=(("block_n", 12),)), tile("warp_specialized", k=128)),
     (problem(128, 128, 256, op="a8w8_blockscale", dtype_a="int8", dtype_b="int8", own=(("block_n", 16),)), tile("warp_specialized", k=128))),
    (H200, "of fewer bits", (problem(8, 64, 256), tile("skinny_dot", 8, 16, 512)), (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 16, 512))),
    (H200, "not from 16 to 128", (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 256, 512)), (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 128, 512))),
    (H200, "BLOCK_SIZE_K must give", (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 16, 256)), (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 16, 256, num_warps=2))),
    (H200, "one load of a thread", (problem(8, 64, 272, **INT4), tile("skinny_dot", 8, 16, 512)), (problem(8, 64, 288, **INT4), tile("skinny_dot", 8, 16, 512))),
    (H200, "contiguous along K", (problem(8, 64, 256, row_major_a=False, **INT4), tile("skinny_dot", 8, 16, 512)), (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 16, 512))),
    (H200, "contiguous along K", (problem(64, 64, 256, row_major_a=False, **MXFP4), tile("tiled")), (problem(64, 64, 256, **MXFP4), tile("tiled"))),
    (B200, "fit tensor memory", (problem(512, 512, 256, **MXFP4), tile("tiled", 256, 256)), (problem(512, 512, 256, **MXFP4), tile("tiled", 256, 128))),
    (B200, "needs wgmma, which sm_100 does not", (problem(8, 64, 256, **INT4), tile("skinny_dot", 8, 16, 512)), (problem(1, 64, 256, **INT4), tile("gemv", 1, 16, 512))),
    (H200, "must divide", (problem(128, 128, 256, op="a8w8_blockscale", dtype_a="int8", dtype_b="int8"), tile("tiled", k=256)),
     (problem(128, 128, 256, op="a8w8_blockscale", dtype_a="int8", dtype_b="int8"), tile("tiled", k=128))),
    (H200, "the ring's rows", (problem(64, 64, 256, **INT8), tile("warp_specialized")), (problem(64, 64, 256), tile("warp_specialized"))),
    (H200, "multiplies int8", (problem(40, 64, 256, **INT8), tile("warp_specialized_swapped", 40, k=128)), (problem(40, 64, 256, **INT8), tile("warp_specialized_swapped", 48, k=128))),
    (H200, "multiplies int8", (problem(40, 64, 256, **INT8), tile("warp_specialized_swapped", 40, k=128)), (problem(40, 64, 256, **INT8), tile("warp_specialized_swapped", 24, k=128))),
    (B200, "wgmma, which sm_100 does not have", (LARGE, tile("warp_specialized")), (LARGE, tile("persistent_tma"))),
    (H200, "16 or 32", (LARGE, tile("warp_specialized", 64, num_warps=8)), (LARGE, tile("warp_specialized", 128, num_warps=8))),
    (H200, "16 or 32", (LARGE, tile("warp_specialized", 256)), (LARGE, tile("warp_specialized", 128))),
    (H200, "groups of four", (LARGE, tile("warp_specialized", num_warps=2)), (LARGE, tile("warp_specialized"))),
    (H200, "box", (LARGE, tile("warp_specialized", 512, 16, num_warps=16)), (LARGE, tile("warp_specialized", 256, 16, num_warps=16))),
    (H200, "filled together", (LARGE, tile("warp_specialized", num_stages=1)), (LARGE, tile("warp_specialized", num_stages=2))),
    (H200, "barriers", (LARGE, tile("warp_specialized", 64, 16, 256, num_stages=16)), (LARGE, tile("warp_specialized", 64, 16, num_stages=16))),
    (H200, "larger than", (FP32_OUT, tile("warp_specialized", 256, 128, num_warps=8, num_stages=2)), (FP32_OUT, tile("warp_specialized", 128, 128, num_stages=2))),
    (H200, "shared memory", (LARGE, tile("warp_specialized", 128, 176, num_stages=5)), (LARGE, tile("warp_specialized", 128, 176, num_stages=4))),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "words", "refused", "taken"), CASES)
def test_refuses_what_it_says_and_takes_a_neighbour(
    gpu: Gpu, words: str, refused: tuple[GemmProblem, Config], taken: tuple[GemmProblem, Config]
) -> None:
    """On one side of the border the reason is told, on the other there is none."""
    assert words in legal(*refused, gpu)
    assert legal(*taken, gpu) == ""


@pytest.mark.parametrize("release", [(3, 6), (3, 7), (3, 8), (3, 9)])
def test_streaming_loads_need_a_newer_triton(monkeypatch: pytest.MonkeyPatch, release: tuple[int, int]) -> None:
    """Triton refuses .cs in loads before 3.8."""
    monkeypatch.setattr(legality, "triton_release", lambda: release)
    assert (legal(LARGE, tile("tiled", cache_modifier=".cs"), MI300X) == "") is (release >= (3, 8))


def test_generation_refuses_what_is_illegal() -> None:
    """One line that names config, problem, target and reason; on no particular target what holds on every one."""
    gemv = tile("gemv", 1, 4, 512)
    said = r"gemv_BM1_\S* cannot compute 64x64x512_\S* on sm_90: gemv multiplies one row of A"
    with pytest.raises(InputError, match=said):
        generate(problem(64, 64, 512), [tile("tiled"), gemv], "sm_90")
    with pytest.raises(InputError, match="needs TMA"):
        generate(LARGE, [tile("tiled_tma")], "gfx942")
    assert "tiled_tma" in generate(LARGE, [tile("tiled_tma")], "any").text
    with pytest.raises(InputError, match="one row"):
        require_legal(problem(64, 64, 512), [gemv], None)


def test_a_format_may_ask_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Op.legal says of a config is asked besides the family."""
    monkeypatch.setattr(legality, "_hook", lambda op: lambda problem, config: f"{op} {config.BLOCK_SIZE_K}")
    assert legal(LARGE, tile("tiled"), H200) == "a16w16 64"


def first_reasons(size: GemmProblem, configs: list[Config], gpu: Gpu) -> list[str]:
    """The first reason why each config is refused, from masks over tables of all configs."""
    found = [""] * len(configs)
    for table, places in tables_of(configs):
        with np.errstate(all="ignore"):
            for mask, reason in refusals(size, table, gpu):
                for place, refused in zip(places, np.broadcast_to(mask, table.shape).tolist(), strict=True):
                    if refused and not found[place]:
                        found[place] = reason
    return found


@pytest.mark.parametrize("stem", FORMS)
def test_a_table_is_refused_as_its_configs_are(stem: str) -> None:
    """Masks say of each config what `legal` says of it alone, for problems and configs at and beyond every limit.

    A single config is checked in Python's numbers, which cannot overflow, a table in 64 bits.
    """
    random = Random(stem)
    for _ in range(repeats(30, 200)):
        arch = random.choice(["sm_90", "sm_90", "sm_100", "sm_100", "sm_80", "gfx942", "gfx1201"])
        size, gpu = random_problem(random, arch), gpu_for_arch(arch)
        configs = [random_config(random, stem, arch) for _ in range(12)]
        assert first_reasons(size, configs, gpu) == [legal(size, config, gpu) for config in configs], size.name


def test_the_first_illegal_config_is_named() -> None:
    """Of several families, with the first reason; nothing is raised if all are legal."""
    good, low, wide = tile("tiled"), tile("tiled", SPLIT_K=0), tile("warp_specialized", 64, 24, 64)
    require_legal(LARGE, [good, good], H200)
    with pytest.raises(InputError) as raised:
        require_legal(LARGE, [good, low, wide], H200)
    assert low.name in str(raised.value)
    assert legal(LARGE, low, H200) in str(raised.value)


def test_a_function_of_single_configs_serves_tables() -> None:
    """It gets each combination that a run-time parameter does not tell apart once, and its reasons become masks."""
    ranges = [("BLOCK_SIZE_M", [16, 32, 64]), ("BLOCK_SIZE_N", [64]), ("BLOCK_SIZE_K", [64]), ("num_warps", [4, 8])]
    ranges += [("num_stages", [2]), ("SPLIT_K", [1, 2, 4]), ("GROUP_SIZE_M", [1, 8])]
    table = ConfigTable.product("tiled", (), ranges)
    asked: list[Config] = []

    def low(config: Config) -> str:
        asked.append(config)
        return "low" if config.BLOCK_SIZE_M < 32 else "many warps" if config.num_warps > 4 else ""

    masks = {
        reason: np.broadcast_to(mask, table.shape)
        for mask, reason in of_single_configs(low, table, ("SPLIT_K", "GROUP_SIZE_M"))
    }
    assert len(asked) == len(set(asked)) == 6
    assert [low(config) for config in table.configs()] == [
        next((reason for reason, mask in masks.items() if mask.ravel()[place]), "") for place in range(table.size)
    ]


def test_shares_may_be_a_function_of_a_single_config() -> None:
    """It reads SPLIT_K, of a table and of one config."""
    odd = dataclasses.replace(
        FORMS["cute_cooperative_direct"],
        shares=lambda problem, config, gpu: "odd" if config.SPLIT_K % 2 and config.SPLIT_K > 1 else "",
    )
    configs = [made("cute_cooperative_direct", 128, 128, 64, 1, splits, 8, 4) for splits in (1, 2, 3, 4, 5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(legality, "traits_of", lambda configs: odd)
        assert first_reasons(LARGE, configs, H200) == ["", "", "odd", "", "odd"]
        assert [legal(LARGE, config, H200) for config in configs] == ["", "", "odd", "", "odd"]


def test_mistakes_in_a_check_end_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that asks for the truth of a column, and one that returns neither text nor masks."""

    def asks(problem: GemmProblem, configs: ConfigTable) -> Iterator[tuple[bool, str]]:
        if configs.BLOCK_SIZE_M > 16:
            yield True, "high"

    configs = [tile("tiled", 16), tile("tiled", 64)]
    monkeypatch.setattr(legality, "_hook", lambda op: asks)
    assert legal(LARGE, configs[1], H200) == "high"
    with pytest.raises(InputError, match="truth of a column"):
        require_legal(LARGE, configs, H200)
    monkeypatch.setattr(legality, "_hook", lambda op: lambda problem, config: [(True, "high")])
    for few in (configs, configs[:1]):
        with pytest.raises(InputError, match="reason as text"):
            require_legal(LARGE, few, H200)


def expected(size: GemmProblem, stem: str, arch: str) -> bool:
    """Whether the form takes the problem at all, from what its operands are rather than from a problem's fields."""
    a, b, c = get_op(size.op).operands(size)[:3]

    def on_16_bytes(*operands: object) -> bool:
        return all(o.stored_shape[-1] * DTYPES[o.dtype].size_bytes % 16 == 0 for o in operands)  # type: ignore[attr-defined]

    if stem == "gemv":
        return a.shape[0] == 1 and not b.row_major
    if stem == "skinny_dot":
        return a.dtype != b.dtype
    if stem.startswith("warp_specialized"):
        # Square operands look alike either way round.
        turns = DTYPES[a.dtype].size_bytes == 2 or (a.row_major and not b.row_major)
        return arch == "sm_90" and turns and DTYPES[a.dtype].size_bytes < 4 and on_16_bytes(a, b, c)
    if stem.startswith("cute_tcgen05"):
        alike = DTYPES[a.dtype].size_bytes == 2 and a.dtype == b.dtype
        stored = (a, b) if stem.endswith("_direct") else (a, b, c)
        return arch == "sm_100" and (alike or DTYPES[a.dtype].is_float8) and on_16_bytes(*stored)
    if stem.startswith("cute_"):
        wide = DTYPES[a.dtype].size_bytes == 2 and a.dtype == b.dtype
        narrow = DTYPES[a.dtype].is_float8 and a.row_major and not b.row_major
        # C goes through no descriptor.
        elsewhere = stem.endswith("_direct")
        stored = (a, b) if elsewhere else (a, b, c)
        copied = elsewhere or DTYPES[c.dtype].size_bytes == 2
        return arch == "sm_90" and (wide or narrow) and copied and on_16_bytes(*stored)
    if stem.startswith("realigned_"):
        off = [o.stored_shape for o in (a, b) if not on_16_bytes(o)]
        copied = sum(rows * -(-columns // 64) * 64 for rows, columns in off)
        of_16_bits = all(DTYPES[o.dtype].size_bytes == 2 for o in (a, b))
        archs = ("sm_90", "sm_100", "sm_120") if stem.endswith("_tma") else ("sm_90",) * on_16_bytes(c)
        return arch in archs and of_16_bits and 0 < copied < 2**31
    if "_tma" in stem:
        stored = (a, b, c) if stem.startswith("persistent") else (a, b)
        return arch in ("sm_90", "sm_100", "sm_120") and on_16_bytes(*stored)
    return True


def space_of(families: list[list[Config]]) -> Space:
    """A space without rules that lists one config for each entry."""
    entries = []
    for configs in families:
        for config in configs:
            ranges = tuple((name, (value,)) for name, value in config.values.items())
            entries.append(FamilySpace(config.family, ranges))
    return Space("any", known_archs(), ("a16w16", "a8w8"), tuple(entries), ())


def test_a_space_without_rules_keeps_what_is_legal() -> None:
    """300 random problems, every form: what is kept is what `legal` lets through, and only what the family takes."""
    random = Random(14)
    kept_forms = set()
    for number in range(300):
        arch = random.choice([*known_archs(), *["sm_90", "sm_100"] * 9])
        gpu, size = gpu_for_arch(arch), random_problem(random, arch)
        configs = [[random_config(random, stem, arch) for _ in range(repeats(1, 4))] for stem in FORMS]
        pruned = prune(space_of(configs), size, gpu)
        every = [config for row in configs for config in row]
        assert pruned.kept == [config for config in every if not legal(size, config, gpu)], (number, size.name)
        assert sum(pruned.illegal.values()) + len(pruned.kept) == len(every)
        for config in every:
            if not expected(size, traits_of(config).stem, arch):
                assert config not in pruned.kept, (size.name, config.name)
                assert legal_problem(size, config.family, config.others, gpu)
            else:
                assert not legal_problem(size, config.family, config.others, gpu), (size.name, config.name)
        kept_forms |= {traits_of(config).stem for config in pruned.kept}
    assert kept_forms >= {stem for stem, traits in FORMS.items() if traits.reads != "registers"}
