"""Tests of genkern.kernels.contract.sum_order: what each family says of the order in which it adds up K, and who
agrees.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import replace
from pathlib import Path

import pytest
from forms import FORMS, made
from small_gemms import make_module, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.kernels.contract.sum_order import SumOrder, equal_shares, near_shares
from genkern.kernels.families.sum_orders import of_dot
from genkern.kernels.source import ast_source
from genkern.ops.accumulate import as_full

BF16 = GemmProblem(48, 1024, 4096)
FP8 = GemmProblem(48, 1024, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16")
INT8 = GemmProblem(48, 1024, 4096, "a8w8", "int8", "int8", "bf16")
BLOCKS = replace(FP8, op="a8w8_blockscale")
BLOCKS_INT8 = replace(INT8, op="a8w8_blockscale")
FP32 = replace(BF16, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32")
INT4 = replace(BF16, op="a16w4", dtype_b="int8")
INT8_WEIGHTS = replace(BF16, op="a16w8", dtype_b="int8")
TILE = 64, 64, 64, 1, 1, 4, 3
SHORT = 16, 64, 64, 1, 1, 4, 3
SPLIT = 64, 64, 64, 1, 4, 4, 3
RING = "warp_specialized"
FEW = "skinny", 4, 8, 512, 1, 2, 4, 2
TRITON = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
# What tiles of eight columns are multiplied by.
EIGHT = "wgmma k16" if TRITON >= (3, 8) else "mma k16"


@pytest.mark.parametrize(
    ("problem", "config", "expected"),
    [
        (BF16, made("tiled", *TILE), "wgmma k16"),
        (BF16, made("tiled", 128, 256, 32, 8, 1, 8, 4), "wgmma k16"),
        (BF16, made("persistent_tma", *TILE), "wgmma k16"),
        (BF16, made(RING, *TILE), "wgmma k16"),
        (BF16, made("warp_specialized_swapped", 24, 128, 256, 1, 1, 8, 3), "wgmma k16"),
        (BF16, made("cute_ping_pong_2x1", 128, 128, 64, 1, 1, 8, 3), "wgmma k16"),
        # Rows of M are few, and the instruction another.
        (BF16, made("tiled", *SHORT), "mma k16"),
        (BF16, made("tiled_tma_swapped", *SHORT), "wgmma k16"),
        (BF16, made("tiled_tma_swapped", 8, 64, 64, 1, 1, 4, 3), EIGHT),
        (BF16, made("tiled_tma_swapped", 16, 32, 256, 1, 1, 8, 3), "mma k16"),
        (BF16, made("tiled", 64, 64, 64, 1, 1, 2, 3), "mma k16"),
        # Who adds parts up changes nothing, nor the blocks that they are made of.
        (BF16, made("tiled", *SPLIT), "wgmma k16; 4 parts of 1024"),
        (BF16, made("tiled_tma", 64, 64, 128, 1, 4, 4, 3), "wgmma k16; 4 parts of 1024"),
        (BF16, made("cute_cooperative_direct", 64, 64, 64, 1, 4, 4, 3), "wgmma k16; 4 parts of 1024"),
        (BF16, made("warp_specialized_swapped_cluster2", 16, 64, 64, 1, 1, 4, 3), "wgmma k16; 2 parts of 2048"),
        (BF16, made("tiled_tma_swapped", 16, 64, 64, 1, 2, 4, 3), "wgmma k16; 2 parts of 2048"),
        (BF16, made("tiled", 64, 64, 64, 1, 3, 4, 3), "wgmma k16; 3 parts: 2 x 1408 + 1280"),
        (BF16, made("tiled_tma", 64, 64, 64, 1, 3, 4, 3), "wgmma k16; 3 parts: 2 x 1344 + 1408"),
        # Order hangs on M, or on a row's place in its tile.
        (BF16, made(RING, 64, 64, 64, 1, 2, 4, 3), ""),
        (BF16, made("warp_specialized_swapped_cluster4", 32, 64, 64, 1, 1, 4, 3), ""),
        (BF16, made(*FEW), "lanes; 2 parts of 2048; as skinny_BM4_BN8_BK512_GM1_SK1_nW4_nS2"),
        (FP8, made("tiled", *TILE), "wgmma k32"),
        (FP8, made(RING, *TILE), "wgmma k32"),
        (FP8, made("cute_ping_pong", 64, 64, 128, 1, 1, 8, 3), "wgmma k32; cute finish"),
        (FP8, made("tiled", *SHORT), "dot; as tiled_BM16_BN64_BK64_GM1_SK1_nW4_nS3"),
        (as_full(FP8), made("tiled", *TILE), "wgmma k32; promoted every 64"),
        (as_full(FP8), made(RING, *TILE), "wgmma k32; promoted every 128"),
        (BLOCKS, made("tiled", 64, 64, 128, 1, 1, 4, 3), "wgmma k32; scaled every 128"),
        (BLOCKS, made(RING, *TILE), "wgmma k32; scaled every 128"),
        (BLOCKS, made("cute_cooperative", 64, 64, 128, 1, 1, 4, 3), "wgmma k32; scaled every 128; cute finish"),
        (BLOCKS_INT8, made("tiled", 16, 64, 128, 1, 1, 4, 3), "exact; scaled every 128"),
        # Integers are added exactly, in any order.
        (INT8, made("tiled", *SPLIT), "exact"),
        (INT8, made("warp_specialized", 64, 64, 64, 1, 2, 4, 3), "exact"),
        (INT8, made(*FEW), "exact"),
        (FP32, made("tiled", *TILE), "fma k1"),
        (replace(FP32, own=(("precision", "tf32"),)), made("tiled", *TILE), "wgmma k8"),
        (INT4, made("tiled", *TILE), "wgmma k16"),
        (INT4, made("tiled", *SPLIT), "wgmma k16; 4 parts of 1024"),
        (INT4, made("tiled", *SHORT), "dot; as tiled_BM16_BN64_BK64_GM1_SK1_nW4_nS3"),
        (INT8_WEIGHTS, made("tiled_tma_swapped", *SHORT), "wgmma k16"),
        (replace(BF16, dtype_a="fp16"), made("tiled", *TILE), "dot; as tiled_BM64_BN64_BK64_GM1_SK1_nW4_nS3"),
        (replace(FP8, dtype_b="fp8e5m2"), made("tiled", *TILE), "wgmma k32"),
    ],
    ids=lambda value: value.name if isinstance(value, Config) else "",
)
def test_orders(problem: GemmProblem, config: Config, expected: str) -> None:
    assert sums_of(problem, config, "sm_90") == expected


def test_orders_elsewhere() -> None:
    """Where Triton's choice of an instruction is not known the order is the kernel's own; without a GPU, nobody's."""
    tile = made("tiled", *TILE)
    own = "dot; as tiled_BM64_BN64_BK64_GM1_SK1_nW4_nS3"
    assert [sums_of(BF16, tile, arch) for arch in ("sm_80", "sm_100", "gfx942", "any")] == ["mma k16", own, own, ""]
    pairs = (Config("cute_tcgen05", 128, 64, 64, 1, 1, 4, 3, cluster="2x1", ctas=ctas) for ctas in (1, 2))
    assert [sums_of(BF16, config, "sm_100") for config in pairs] == ["tcgen05 k16", "tcgen05 pair k16"]


def test_m_is_not_read() -> None:
    """One order for all M; and every family says one, unsplit, but where programs share K by threes and more."""
    for stem in FORMS:
        config = made(stem, *TILE)
        orders = {sums_of(replace(BF16, M=m), config, "sm_90") for m in (1, 7, 64, 65, 4096)}
        assert len(orders) == 1
        assert (orders == {""}) is (FORMS[stem].cluster_k > 2)


@pytest.mark.parametrize("config", [made("tiled", *TILE), made("tiled", *SPLIT)], ids=lambda config: config.name)
def test_a_class_is_of_blocks_stages_and_groups(config: Config) -> None:
    """What has nothing to do with the order of K is no part of it."""
    order = sums_of(BF16, config, "sm_90")
    for change in ({"BLOCK_SIZE_K": 128}, {"BLOCK_SIZE_M": 128}, {"BLOCK_SIZE_N": 16}, {"num_stages": 1},
                   {"GROUP_SIZE_M": 8}, {"num_warps": 8}):  # fmt: skip
        assert sums_of(BF16, config.with_values(**change), "sm_90") == order
    assert sums_of(BF16, config.with_values(SPLIT_K=2), "sm_90") != order


def test_parts_of_k_are_all_of_k() -> None:
    """All of K, block by block, in as many shares as have any."""
    assert near_shares(4096, 64, 3) == (1344, 1344, 1408)
    assert equal_shares(4096, 64, 3) == (1408, 1408, 1280)
    for k in (8, 100, 4096, 4100):
        for block in (16, 64, 256):
            for count in (1, 2, 3, 7, 32):
                for shares in (near_shares(k, block, count), equal_shares(k, block, count)):
                    assert sum(shares) == k
                    assert len(shares) <= count
                    assert min(shares) > 0
                    assert all(share % block == 0 for share in shares[:-1])


def test_texts_tell_orders_apart() -> None:
    """However many lengths parts have: a text stays short, and equal ones are of equal parts alone."""
    texts = [SumOrder("wgmma k16", near_shares(k, 64, 48)).text for k in (6400, 8192, 8256, 100_000)]
    assert len(set(texts)) == len(texts)
    assert max(map(len, texts)) < 120
    assert SumOrder("wgmma k16", (4096,)).text == SumOrder("wgmma k16").text == "wgmma k16"
    assert {SumOrder("x", finish="cute").text, SumOrder("x", like="cute").text, SumOrder("x", promoted=8).text} == {
        "x; cute finish",
        "x; as cute",
        "x; promoted every 8",
    }


def test_neighbours_and_swapped_operands() -> None:
    """They change nothing."""
    split = of_dot(True, BF16, made("tiled_swapped", 16, 64, 64, 1, 2, 4, 3), "sm_90")
    assert split == of_dot(False, BF16, made("tiled_tma", 64, 16, 64, 1, 2, 4, 3), "sm_90")
    beside = made("warp_specialized_2x1", *TILE), made("warp_specialized_swapped_1x2", *TILE)
    assert {sums_of(BF16, config, "sm_90") for config in beside} == {"wgmma k16"}


# Of 8 and of 16 columns, of rows for one group of warps and for less, and of warps that are no group.
TILES = [
    (made("tiled", 64, 16, 32, 1, 1, 8, 2), "wgmma k16"),
    (made("tiled", 32, 64, 32, 1, 1, 4, 2), "mma k16"),
    (made("tiled", 64, 64, 32, 1, 1, 2, 2), "mma k16"),
    (made("tiled_tma_swapped", 8, 64, 32, 1, 1, 4, 2), EIGHT),
    (made("tiled_tma_swapped", 16, 64, 16, 1, 1, 4, 2), "wgmma k16"),
    # A block of 256 in 8 warps was measured to differ: it is not they, but fewer than 64 rows for the instruction.
    (made("tiled_tma_swapped", 16, 32, 256, 1, 1, 8, 2), "mma k16"),
    (made("tiled_tma_swapped", 16, 64, 256, 1, 1, 8, 2), "wgmma k16"),
]


@pytest.mark.skipif(TRITON < (3, 6), reason="an earlier Triton multiplies tiles of 8 columns by wgmma, too")
@pytest.mark.parametrize(("config", "expected"), TILES, ids=[config.name for config, _ in TILES])
def test_triton_multiplies_by_what_is_said(
    config: Config, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all that it compiles of a tile."""
    problem = GemmProblem(config.BLOCK_SIZE_M, 64, max(64, config.BLOCK_SIZE_K))
    assert sums_of(problem, config, "sm_90") == expected
    found = re.findall(
        r"(wgmma|mma)\.(?:mma_async\.)?sync\.aligned\.m\d+n\d+(k\d+)", ptx_of(problem, config, tmp_path, monkeypatch)
    )
    assert set(found) == {tuple(expected.split())}


@pytest.mark.parametrize("stem", ["tiled", "tiled_swapped"])
def test_what_a_step_converts_meets_k_in_order(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where wgmma has it from registers it has the other side by a descriptor, from shared memory."""
    config = made(stem, 64, 64, 64, 1, 1, 4, 2)
    problem = replace(INT4, M=64, N=64, K=128)
    assert sums_of(problem, config, "sm_90") == "wgmma k16"
    ptx = ptx_of(problem, config, tmp_path, monkeypatch)
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.\w+\.f32\.bf16\.bf16\s+\{[^}]*\},\s*([^;]*);", ptx)
    assert products
    assert " mma.sync" not in ptx
    # D, then A (registers in braces, or a descriptor), then B, which is always a descriptor.
    assert all(re.match(r"(\{[^}]*\}|%\w+),\s*%\w+,", operands) for operands in products)
    assert all(operands.startswith("{") for operands in products) is (stem == "tiled_swapped")


def ptx_of(problem: GemmProblem, config: Config, folder: Path, patch: pytest.MonkeyPatch) -> str:
    """What Triton makes of a config's main kernel for sm_90."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    patch.delenv("TRITON_STORE_BINARY_ONLY", raising=False)
    module, loaded = make_module(folder, problem, [config], "sm_90")
    spec = specs_of(module, config)[0]
    on = target(*triton_target(gpu_for_arch("sm_90")))
    return str(compiler.compile(ast_source(loaded, spec), on, dict(spec.options)).asm["ptx"])
