"""Tests of genkern.kernels.cute.dense_product: what is multiplied and how it is finished, on every architecture."""

from __future__ import annotations

import pytest

from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.dense_product import finish_limit, operands_limit, scales_of

FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}


def problem(**fields: object) -> GemmProblem:
    return GemmProblem(512, 512, 512, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "scales"),
    [({}, "none"), (FP8, "whole"), ({**FP8, "own": (("scales", "per_token"),)}, "each")],
)
def test_scales(fields: dict[str, object], scales: str) -> None:
    """As the format declares them."""
    assert scales_of(problem(**fields)) == scales


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        (FP8, ""),
        ({"dtype_b": "fp16"}, "operands of one type"),
        ({"op": "a8w8", "dtype_a": "int8", "dtype_b": "int8"}, "bf16, fp16 or fp8"),
    ],
)
def test_operands(fields: dict[str, object], why: str) -> None:
    """Types of 8 bits may be mixed, those of 16 not."""
    said = operands_limit(problem(**fields))
    assert why in said
    assert bool(why) == bool(said)


def test_finish() -> None:
    """Scales, bias and activation, to three types; block scales are another kernel's."""
    assert finish_limit(problem(bias=True, activation="silu", dtype_c="fp32")) == ""
    blocks = problem(op="a8w8_blockscale", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn")
    assert "scales of A and B, bias and activation only" in finish_limit(blocks)
