"""Tests of runtime/backends/lt_matmul.py and _api.py against a library that computes on the host."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_cublaslt import build
from lt_problems import WORKSPACE_BYTES, expected_of, leading_of, operands_of, pointers_of, variable

from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_full
from genkern.runtime.backends.cublaslt_api import DIALECT, Api
from genkern.runtime.backends.cublaslt_search import ASKED
from genkern.runtime.backends.lt_api import LtError
from genkern.runtime.backends.lt_matmul import Matmul, Pointers, alignment, handle
from genkern.runtime.backends.lt_operation import operation_of

PLAIN = GemmProblem(5, 7, 9)
FP8 = GemmProblem(8, 16, 32, op="a8w8", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn", dtype_c="fp32")
LAYOUTS = [(True, True), (True, False), (False, True), (False, False)]


def result_of(library: Api, problem: GemmProblem, padding: int = 0) -> torch.Tensor:
    """C by the first algorithm of the heuristic; fails where it is not what the definition says."""
    operands = operands_of(problem, padding)
    matmul = Matmul(library, operation_of(problem, DIALECT, leading_of(operands)), 0)
    pointers = pointers_of(operands)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8)
    algorithm = matmul.heuristic(pointers, WORKSPACE_BYTES, ASKED)[0]
    matmul.launch(algorithm, pointers, workspace.data_ptr(), WORKSPACE_BYTES, 7)
    expected = expected_of(problem, operands)
    assert torch.equal(operands["c"], expected.to(operands["c"].dtype))
    assert expected.any()
    return operands["c"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("dtype", "dtype_c"), [("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp32", "fp32")])
def test_layouts_and_types(fake: Api, layout: tuple[bool, bool], padding: int, dtype: str, dtype_c: str) -> None:
    """Every layout, with rows longer than they are or not, in every type, gives the product to the bit."""
    row_major_a, row_major_b = layout
    types = {"dtype_a": dtype, "dtype_b": dtype, "dtype_c": dtype_c}
    result_of(fake, replace(PLAIN, row_major_a=row_major_a, row_major_b=row_major_b, **types), padding)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_the_library_adds_a_bias_for_each_column_before_the_activation(fake: Api, bias: bool, activation: str) -> None:
    """Bias is one number a column of C, before the activation."""
    result_of(fake, replace(PLAIN, bias=bias, activation=activation))


@pytest.mark.parametrize("types", [("fp8e4m3fn", "fp8e4m3fn"), ("fp8e4m3fn", "fp8e5m2"), ("fp8e5m2", "fp8e4m3fn")])
@pytest.mark.parametrize("own", [(), (("scales", "per_token"),)])
def test_fp8(fake: Api, types: tuple[str, str], own: tuple[tuple[str, str], ...]) -> None:
    """Scales of a whole operand, or of a row of A and a column of B, go with their operand."""
    result_of(fake, replace(FP8, dtype_a=types[0], dtype_b=types[1], own=own))
    result_of(fake, replace(FP8, dtype_a=types[0], dtype_b=types[1], own=own, dtype_c="bf16", bias=True))


@pytest.mark.parametrize("own", [(), (("scales", "per_token"),)])
def test_sums_of_fp8_are_fast_where_the_problem_lets_them_be(fake: Api, own: tuple[tuple[str, str], ...]) -> None:
    """As torch._scaled_mm's use_fast_accum says; with scales of blocks, and of other types, there are no others."""
    fast = variable(fake, "fake_fast", ctypes.c_int)
    for problem, wanted in ((replace(FP8, own=own), 1), (as_full(replace(FP8, own=own)), 0)):
        result_of(fake, problem)
        assert fast.value == wanted
    result_of(fake, replace(FP8, own=own))
    result_of(fake, replace(FP8, op="a8w8_blockscale", M=8, N=256, K=512))
    assert fast.value == 0


def test_fp8_with_scales_of_blocks(fake: Api) -> None:
    """As their format lays them out: the library reads the scales of A column by column, those of B row by row."""
    result_of(fake, replace(FP8, op="a8w8_blockscale", M=8, N=256, K=512))


def test_int8(fake: Api) -> None:
    """To int32, in all layouts; alpha and beta are integers then."""
    for row_major_a, row_major_b in LAYOUTS:
        problem = replace(PLAIN, row_major_a=row_major_a, row_major_b=row_major_b)
        result_of(fake, replace(problem, dtype_a="int8", dtype_b="int8", dtype_c="int32"))


def test_a_library_without_scale_modes_takes_scalars(tmp_path: Path) -> None:
    """Before 12.8 there is no attribute for the mode: scales of whole operands do without it, others are refused."""
    older = build(tmp_path, 120400)
    assert older.version == 120400
    result_of(older, FP8)
    with pytest.raises(LtError, match="cublasLtMatmulDescSetAttribute: invalid value"):
        result_of(older, replace(FP8, own=(("scales", "per_token"),)))


def test_a_call_says_what_went_wrong(fake: Api) -> None:
    """With the library's function and its word; too small a workspace is refused before anything is enqueued."""
    operands = operands_of(PLAIN)
    matmul, pointers = Matmul(fake, operation_of(PLAIN, DIALECT), 0), pointers_of(operands)
    algorithms = matmul.heuristic(pointers, WORKSPACE_BYTES, ASKED)
    hungry = next(algorithm for algorithm in algorithms if algorithm.workspace_bytes)
    called = variable(fake, "fake_matmuls").value
    with pytest.raises(LtError, match="cublasLtMatmul: invalid value"):
        matmul.launch(hungry, pointers, 0, 0, 0)
    assert variable(fake, "fake_matmuls").value == called


def test_what_is_bound_needs_a_stream_only(fake: Api) -> None:
    """Nothing else is created, set or looked up by a call, and what it needs lives as long as the function."""
    operands = operands_of(replace(PLAIN, bias=True))
    matmul, pointers = Matmul(fake, operation_of(replace(PLAIN, bias=True), DIALECT), 0), pointers_of(operands)
    call = matmul.bind(matmul.heuristic(pointers, 0, ASKED)[0], pointers, 0, 0)
    del matmul
    gc.collect()
    alive = variable(fake, "fake_alive").value
    call(1234)
    assert torch.equal(operands["c"], expected_of(replace(PLAIN, bias=True), operands).bfloat16())
    assert variable(fake, "fake_stream", ctypes.c_void_p).value == 1234
    assert variable(fake, "fake_alive").value == alive


def test_descriptors_are_made_once_and_go_with_their_owner(fake: Api) -> None:
    """The same addresses find the same descriptor, others another; nothing of the library's is left behind."""
    gc.collect()
    alive = variable(fake, "fake_alive").value
    matmul = Matmul(fake, operation_of(replace(PLAIN, bias=True), DIALECT), 0)
    first = matmul.descriptor(Pointers(1, 2, 3, bias=64))
    assert matmul.descriptor(Pointers(4, 5, 6, bias=64)) is first
    assert matmul.descriptor(Pointers(1, 2, 3, bias=128)) is not first
    for bias in range(1, 1000):
        matmul.descriptor(Pointers(1, 2, 3, bias=bias))
    assert variable(fake, "fake_alive").value - alive < 300
    del matmul, first
    gc.collect()
    assert variable(fake, "fake_alive").value == alive


def test_one_handle_a_device(fake: Api) -> None:
    """However many threads ask for it first."""
    before = variable(fake, "fake_creates").value
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(handle(fake, 5).value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert handle(fake, 6).value not in found
    assert variable(fake, "fake_creates").value == before + 2


@pytest.mark.parametrize(("address", "expected"), [(0, 256), (512, 256), (256, 256), (16, 16), (48, 16), (2, 2)])
def test_alignment(address: int, expected: int) -> None:
    """The largest power of two that divides it, as far as the library asks; what is not there is aligned."""
    assert alignment(address) == expected
