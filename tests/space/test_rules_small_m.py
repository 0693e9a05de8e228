"""Tests of genkern.space.rules.small_m, beside those of test_rules.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.rules.small_m import dot_for_one_row

H200 = gpu_for_arch("sm_90")
ONE_ROW = GemmProblem(1, 128, 256)


@pytest.mark.parametrize("family", ["tiled", "tiled_swapped", "tiled_tma", "warp_specialized_swapped_cluster4"])
def test_one_row_is_for_families_without_a_dot(family: str) -> None:
    """The others are dropped, where it is known who wins."""
    assert dot_for_one_row(ONE_ROW, made(family, 16, 64, 64), H200)
    assert not dot_for_one_row(ONE_ROW, Config("gemv", 1, 4, 256), H200)
    assert not dot_for_one_row(ONE_ROW, Config("skinny", 1, 4, 256), H200)


@pytest.mark.parametrize(
    "other",
    [
        {"M": 2},
        {"N": 127},
        {"K": 248},
        {"K": 260},
        {"K": 28 * 128 + 8},
        {"N": 4096, "K": 25_608},
        {"row_major_b": True},
        {"dtype_a": "fp32", "dtype_b": "fp32"},
        {"op": "a8w8", "dtype_a": "int8", "dtype_b": "int8"},
    ],
    ids=str,
)
def test_where_nobody_has_measured_all_families_stay(other: dict[str, object]) -> None:
    """More rows, fewer columns, a shorter or longer K or one of odd pieces, weights along N, types of other sizes."""
    assert not dot_for_one_row(replace(ONE_ROW, **other), Config("tiled", 16, 64, 64), H200)  # type: ignore[arg-type]
