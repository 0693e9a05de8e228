"""The kernel for sm_90 computes a batch of products to the bit, on the machine of test_run_sm90."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cute_stand_in import needs_dsl
from test_run_sm90 import is_found, made_of, run

from genkern.gemm.problem import GemmProblem

pytestmark = needs_dsl


def batch(m: int, n: int, k: int, products: int, **more: object) -> GemmProblem:
    fields: dict[str, object] = {"op": "batched_a16w16", "own": (("batch_size", products),)}
    return GemmProblem(m, n, k, **fields | more)  # type: ignore[arg-type]


_TURNED = {"row_major_a": False, "row_major_b": True}
_FP8 = {"op": "batched_a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}
# Whole tiles; M and N that tiles overhang, within a part of C and between parts; products of one tile and of several.
CASES = [
    (batch(128, 128, 128, 5), "cute_wgmma_BM64_BN64_BK64_GM2_SK1_nW8_nS3_ping_pong"),
    (batch(100, 104, 200, 3), "cute_wgmma_BM64_BN72_BK64_GM1_SK1_nW8_nS2_ping_pong"),
    (batch(37, 40, 72, 7), "cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW8_nS2_ping_pong"),
    (batch(150, 200, 136, 3), "cute_wgmma_BM128_BN128_BK64_GM2_SK1_nW8_nS2"),
    (batch(250, 136, 136, 3), "cute_wgmma_BM192_BN128_BK64_GM2_SK1_nW12_nS2"),
    (batch(88, 96, 128, 3, **_TURNED), "cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW4_nS2"),
    (batch(200, 136, 72, 2), "cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW8_nS2_ping_pong_cl2x1"),
    (batch(200, 200, 72, 2), "cute_wgmma_BM64_BN64_BK64_GM2_SK1_nW4_nS2_cl2x2"),
    (batch(100, 72, 136, 3), "cute_wgmma_BM72_BN64_BK64_GM1_SK1_nW8_nS2_ping_pong_swapped"),
    (batch(61, 200, 136, 3), "cute_wgmma_BM40_BN64_BK64_GM2_SK1_nW4_nS2_cl1x2_swapped"),
    (batch(75, 61, 72, 3), "cute_wgmma_BM64_BN40_BK64_GM1_SK1_nW8_nS2_ping_pong_direct"),
    (batch(75, 61, 72, 3, dtype_c="fp32"), "cute_wgmma_BM40_BN64_BK64_GM1_SK1_nW4_nS2_direct_swapped"),
    (batch(75, 72, 144, 3, **_FP8), "cute_wgmma_BM64_BN64_BK128_GM1_SK1_nW8_nS2_ping_pong"),
    (batch(75, 72, 144, 3, **_FP8), "cute_wgmma_BM40_BN64_BK128_GM1_SK1_nW4_nS2_direct_swapped"),
]


@pytest.mark.parametrize(("of", "name"), CASES, ids=[f"{name}-{of.M}x{of.N}x{of.K}" for of, name in CASES])
def test_a_batch_is_computed(of: GemmProblem, name: str, tmp_path: Path) -> None:
    """Every product, and nothing of one by another, where a program has tiles of several."""
    config, made = made_of(of, name, tmp_path)
    assert made.planned_boxes == made.boxes
    for clusters in (1, 2):
        got, wanted = run(of, config, made, seed=clusters, clusters=clusters)
        np.testing.assert_array_equal(got, wanted, f"{of} {name}")


def test_parts_that_overhang_go_by_threads(tmp_path: Path) -> None:
    """Rows that share a part with the next product's are those that 16 bytes at a time bring."""
    of, name = CASES[1]
    config, made = made_of(of, name, tmp_path)
    changed = re.sub(r"st\.global\.v4[^;]*;", "", made.ptx)
    assert changed != made.ptx
    assert is_found(of, config, made._replace(ptx=changed), seeds=1)
