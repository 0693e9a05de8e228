"""Tests of runtime/backends/lt_operation.py: what is described is the problem, computed by definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends import lt_api as api
from genkern.runtime.backends.cublaslt_api import DIALECT
from genkern.runtime.backends.lt_operation import Layout, NotCovered, Operation, operation_of, refusal

FP8 = GemmProblem(64, 64, 128, op="a8w8", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn")


def column_major(memory: np.ndarray, layout: Layout, transposed: bool) -> np.ndarray:
    """op(X) of the library, read from memory as its layout says."""
    rows, columns = np.arange(layout.rows), np.arange(layout.columns)
    matrix = memory[rows[:, None] + columns[None, :] * layout.leading]
    return matrix.T if transposed else matrix


def computed(operation: Operation, of_a: np.ndarray, of_b: np.ndarray, bias: np.ndarray, size: int) -> np.ndarray:
    """The library's D in memory of `size` elements; those that it does not write are NaN."""
    a = column_major(of_a, operation.a, operation.transposed_a)
    b = column_major(of_b, operation.b, operation.transposed_b)
    d = a @ b
    if operation.epilogue & api.EPILOGUE_BIAS:
        d = d + bias[:, None]
    if operation.epilogue & api.EPILOGUE_RELU:
        d = np.maximum(d, 0)
    assert d.shape == (operation.d.rows, operation.d.columns)
    memory = np.full(size, np.nan)
    rows, columns = np.arange(operation.d.rows), np.arange(operation.d.columns)
    memory[rows[:, None] + columns[None, :] * operation.d.leading] = d
    return memory


@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.tuples(*[st.integers(0, 3)] * 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["none", "relu"]),
    st.integers(0, 99),
)
def test_what_is_described_is_the_problem(
    size: tuple[int, int, int],
    padding: tuple[int, int, int],
    row_major_a: bool,
    row_major_b: bool,
    bias: bool,
    activation: str,
    seed: int,
) -> None:
    """Any layout, leading dimension and epilogue: C row by row in memory, and nothing between its rows is written."""
    M, N, K = size
    layout = {"row_major_a": row_major_a, "row_major_b": row_major_b}
    problem = GemmProblem(M, N, K, bias=bias, activation=activation, **layout)
    draw = np.random.default_rng(seed)
    a, b, added = (draw.integers(-4, 5, shape).astype(float) for shape in ((M, K), (K, N), (N,)))
    in_memory, leading = {}, {}
    for name, matrix, row_major, longer in (("a", a, row_major_a, padding[0]), ("b", b, row_major_b, padding[1])):
        stored = matrix if row_major else matrix.T
        leading[name] = stored.shape[1] + longer
        in_memory[name] = np.pad(stored, ((0, 0), (0, longer)), constant_values=np.nan).ravel()
    leading["c"] = N + padding[2]
    memory = computed(operation_of(problem, DIALECT, leading), in_memory["b"], in_memory["a"], added, M * leading["c"])
    found = memory.reshape(M, leading["c"])
    expected = a @ b + (added if bias else 0)
    np.testing.assert_array_equal(found[:, :N], np.maximum(expected, 0) if activation == "relu" else expected)
    assert np.isnan(found[:, N:]).all()


def test_contiguous_matrices_need_no_leading_dimensions() -> None:
    """The weight of a linear layer, [N, K] in memory, is what the library calls its transposed A."""
    found = operation_of(GemmProblem(16, 4096, 1024), DIALECT)
    assert (found.transposed_a, found.transposed_b) == (True, False)
    assert found.a == Layout(DTYPES["bf16"].cuda, 1024, 4096, 1024)
    assert found.b == Layout(DTYPES["bf16"].cuda, 1024, 16, 1024)
    assert found.d == Layout(DTYPES["bf16"].cuda, 4096, 16, 4096)
    assert (found.compute, found.scale_type) == (DIALECT.compute["fp32"], api.R_32F)


def test_scales_change_sides_with_their_matrices() -> None:
    """One scale each has no mode of its own; blocks of 128 x 128 are the weight's, which is the library's A."""
    assert operation_of(FP8, DIALECT).scales == (api.SCALE_SCALAR, api.SCALE_SCALAR)
    rows = replace(FP8, own=(("scales", "per_token"),))
    assert operation_of(rows, DIALECT).scales == (api.SCALE_OUTER_VEC, api.SCALE_OUTER_VEC)
    blocks = replace(FP8, op="a8w8_blockscale", K=512)
    assert operation_of(blocks, DIALECT).scales == (api.SCALE_BLK128X128, api.SCALE_VEC128)
    assert operation_of(GemmProblem(8, 8, 8), DIALECT).scales is None


def test_partial_sums_are_added_in_the_type_they_are_computed_in() -> None:
    """bf16 sums of splits would be another result; where the output is float32 nothing is lost."""
    assert operation_of(GemmProblem(8, 8, 8), DIALECT).reductions == api.REDUCTION_COMPUTE_TYPE
    assert operation_of(GemmProblem(8, 8, 8, dtype_c="fp32"), DIALECT).reductions == 7


def test_int8_is_multiplied_to_int32() -> None:
    """The whole of what the library does with integers; scales and casts are no part of it."""
    found = operation_of(GemmProblem(16, 16, 16, dtype_a="int8", dtype_b="int8", dtype_c="int32"), DIALECT)
    assert (found.compute, found.scale_type) == (DIALECT.compute["int32"], api.R_32I)
    assert found.types == (72, 10, 3, 3, 10, 10)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (GemmProblem(8, 8, 8, activation="gelu"), "no gelu epilogue (its gelu is the tanh form)"),
        (GemmProblem(8, 8, 8, activation="silu"), "no silu epilogue"),
        (GemmProblem(8, 8, 8, dtype_c="fp16"), "no product of bf16 and bf16 to fp16"),
        (GemmProblem(8, 8, 8, dtype_a="fp16", dtype_b="bf16", dtype_c="fp16"), "no product of fp16 and bf16"),
        (replace(FP8, dtype_a="int8", dtype_b="int8"), "cannot scale or convert integer sums"),
        (replace(FP8, dtype_a="int8", dtype_b="int8", dtype_c="int32"), "integer product has no scales"),
        (replace(FP8, dtype_a="fp8e5m2", dtype_b="fp8e5m2"), "no product of fp8e5m2 and fp8e5m2"),
        (replace(FP8, dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz"), "no product of fp8e4m3fnuz"),
        (replace(FP8, row_major_b=True), "K contiguous in both operands only"),
        (replace(FP8, row_major_a=False), "K contiguous in both operands only"),
        (replace(FP8, bias=True, dtype_c="fp32"), "bias of an fp8 product with fp32 output is bf16"),
        (replace(FP8, op="a8w8_blockscale", M=3, K=512), "multiples of 4"),
    ],
)
def test_what_the_library_does_not_compute_is_refused(problem: GemmProblem, reason: str) -> None:
    """With the reason, in one line: a call that leaves something of the problem out is no call of it."""
    assert reason in refusal(problem, DIALECT)
    with pytest.raises(NotCovered, match=r"library|cuBLASLt"):
        operation_of(problem, DIALECT)


def test_rows_in_groups_are_not_its() -> None:
    """A product of rows in groups is no product of one weight, whatever its size and types."""
    problem = GemmProblem(64, 64, 128, op="grouped_gemm", own=(("groups", 4),))
    assert "no grouped product" in refusal(problem, DIALECT)
    with pytest.raises(NotCovered):
        operation_of(problem, DIALECT)
