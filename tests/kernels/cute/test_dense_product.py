"""Tests of genkern.kernels.cute.dense_product: what is multiplied and how it is finished, on every architecture."""

from __future__ import annotations

import ast

import pytest

from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.variant import Variant
from genkern.kernels.cute import dense, dense_sm100
from genkern.kernels.cute.dense_product import finish_limit, operands_limit, product_constants, scales_of
from genkern.kernels.cute.source_file import path_of

FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}
BLOCKS = {"op": "a8w8_blockscale", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}


def problem(**fields: object) -> GemmProblem:
    return GemmProblem(512, 512, 512, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "scales"),
    [({}, "none"), (FP8, "whole"), ({**FP8, "own": (("scales", "per_token"),)}, "each"), (BLOCKS, "blocks")],
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


def test_products_have_scales_bias_and_activation() -> None:
    """Scales, bias and activation, to three types; scales of blocks of one size."""
    assert finish_limit(problem(bias=True, activation="silu", dtype_c="fp32")) == ""
    assert finish_limit(problem(**BLOCKS, bias=True)) == ""
    for own in (("block_m", 128), ("block_n", 64), ("block_k", 64)):
        assert "or 1x128 and 128x128 blocks" in finish_limit(problem(**BLOCKS, own=(own,)))


@pytest.mark.parametrize("template", [dense.TEMPLATE, dense_sm100.TEMPLATE])
def test_kernels_take_what_is_said_of_the_product(template: str) -> None:
    """By the names of the parameters of `Dense`, on every architecture."""
    fields = {**FP8, "own": (("scales", "per_token"),), "bias": True, "activation": "silu", "row_major_b": True}
    said = product_constants(problem(**fields), Variant("matmul", template, down=2, across=1))
    types = ("fp8e4m3fn", "fp8e5m2", "bf16", 1, 0, "each", 1, "silu")
    assert tuple(said.values())[: len(types)] == types
    assert (said["cluster_m"], said["cluster_n"]) == (2, 1)
    (dense_class,) = (
        node for node in ast.walk(ast.parse(path_of(template).read_text())) if getattr(node, "name", "") == "Dense"
    )
    (made,) = (node for node in dense_class.body if getattr(node, "name", "") == "__init__")
    assert set(said) <= {each.arg for each in made.args.kwonlyargs}
