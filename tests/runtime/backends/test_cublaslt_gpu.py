"""The real cuBLASLt on a GPU: right in every layout and type by every algorithm, found again, and captured."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lt_problems import expected_of, leading_of, operands_of, pointers_of
from small_gemms import make_module, write_module

from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.algorithms import Algorithms
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.loaded_gemm import LoadedGemm
from genkern.runtime.backends import cublaslt
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES
from genkern.timing.libraries import stored_algorithm
from genkern.timing.session import Budget, Session

pytestmark = pytest.mark.gpu

PLAIN = GemmProblem(48, 80, 96)
FP8 = GemmProblem(64, 256, 512, op="a8w8", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn")
LAYOUTS = [(True, True), (True, False), (False, True), (False, False)]
TYPES = [("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp16", "fp32"), ("fp32", "fp32")]


@pytest.fixture(scope="module", autouse=True)
def workspace() -> torch.Tensor:
    if why := cublaslt.BACKEND.available():
        pytest.skip(why)
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def every_algorithm_is_right(problem: GemmProblem, workspace: torch.Tensor, most: int = 64, padding: int = 0) -> int:
    """On inputs whose every partial sum is exact, so that any order of additions gives the same bits."""
    verdicts = right_by_algorithm(problem, workspace, most, padding)
    assert all(verdicts.values()), verdicts
    return len(verdicts)


def right_by_algorithm(
    problem: GemmProblem, workspace: torch.Tensor, most: int = 64, padding: int = 0
) -> dict[str, bool]:
    """Whether each algorithm's result is that of exact inputs, to the bit."""
    operands = operands_of(problem, padding, device="cuda")
    matmul = cublaslt.BACKEND.prepare(problem, 0, leading_of(operands))
    pointers = pointers_of(operands)
    expected = expected_of(problem, operands).to(operands["c"].dtype)
    stream = torch.cuda.current_stream().cuda_stream
    right = {}
    for algorithm in cublaslt.BACKEND.candidates(matmul, pointers, most):
        operands["c"].fill_(1000)
        matmul.bind(algorithm, pointers, workspace.data_ptr(), len(workspace))(stream)
        torch.cuda.synchronize()
        right[cublaslt.BACKEND.kept(matmul, algorithm).name] = torch.equal(operands["c"], expected)
    return right


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("padding", [0, 16])
def test_layouts_and_types(
    layout: tuple[bool, bool], types: tuple[str, str], padding: int, workspace: torch.Tensor
) -> None:
    """To the bit, contiguous or with longer rows, by all that the heuristic returns and what is found beyond it."""
    row_major_a, row_major_b = layout
    kinds = {"dtype_a": types[0], "dtype_b": types[0], "dtype_c": types[1]}
    problem = replace(PLAIN, row_major_a=row_major_a, row_major_b=row_major_b, **kinds)
    assert every_algorithm_is_right(problem, workspace, padding=padding) > 0


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_epilogues(types: tuple[str, str], bias: bool, activation: str, workspace: torch.Tensor) -> None:
    """Bias in C's type, then the activation."""
    kinds = {"dtype_a": types[0], "dtype_b": types[0], "dtype_c": types[1]}
    assert every_algorithm_is_right(replace(PLAIN, bias=bias, activation=activation, **kinds), workspace) > 0


@pytest.mark.parametrize("size", [(1, 4096, 4096), (16, 4096, 7168), (1024, 1024, 4096), (33, 129, 1001)])
def test_other_sizes(size: tuple[int, int, int], workspace: torch.Tensor) -> None:
    """Splits of a long K, many tiles, and rows off 16 bytes. Partial sums in bf16 would show here."""
    M, N, K = size
    assert every_algorithm_is_right(GemmProblem(M, N, K), workspace) > 0


@pytest.mark.parametrize("dtype_c", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scales", ["per_tensor", "per_token"])
def test_fp8(dtype_c: str, bias: bool, scales: str, workspace: torch.Tensor) -> None:
    """Scales of whole operands always; of rows and columns where this library and device have them."""
    if bias and dtype_c == "fp32":
        pytest.skip("the library's bias is bf16 there")
    own = () if scales == "per_tensor" else (("scales", scales),)
    problem = replace(FP8, K=64, dtype_c=dtype_c, bias=bias, own=own)
    found = every_algorithm_is_right(problem, workspace)
    assert found > 0 or scales == "per_token"


def test_fp8_with_scales_of_blocks(workspace: torch.Tensor) -> None:
    """Where this library and device have them, some algorithm is right; since others are not, none is called that was
    not raced and checked.
    """
    problem = replace(FP8, op="a8w8_blockscale")
    right = right_by_algorithm(problem, workspace)
    if not right:
        pytest.skip("this library has no such product here")
    assert any(right.values())
    operands = operands_of(problem, device="cuda")
    assert cublaslt.BACKEND.settled(cublaslt.BACKEND.prepare(problem, 0), pointers_of(operands), None) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_int8(layout: tuple[bool, bool], workspace: torch.Tensor) -> None:
    """To int32, exactly. Rows of B in memory that are not K are not for every device."""
    row_major_a, row_major_b = layout
    types = {"dtype_a": "int8", "dtype_b": "int8", "dtype_c": "int32"}
    problem = GemmProblem(64, 64, 128, row_major_a=row_major_a, row_major_b=row_major_b, **types)
    found = every_algorithm_is_right(problem, workspace)
    assert found > 0 or (row_major_a, row_major_b) != (True, False)


def test_random_inputs_agree_with_float64(workspace: torch.Tensor) -> None:
    """Within the roundings of bf16 and of a float32 sum, by every algorithm."""
    problem = GemmProblem(256, 512, 4096)
    operands = {
        name: torch.randn(x.shape, device="cuda").to(x.dtype) if name != "b" else torch.randn_like(x.T).T
        for name, x in operands_of(problem, device="cuda").items()
    }
    matmul, pointers = cublaslt.BACKEND.prepare(problem, 0), pointers_of(operands)
    expected = expected_of(problem, operands)
    magnitude = operands["a"].double().abs() @ operands["b"].double().abs()
    for algorithm in cublaslt.BACKEND.candidates(matmul, pointers, 32):
        matmul.bind(algorithm, pointers, workspace.data_ptr(), len(workspace))(torch.cuda.current_stream().cuda_stream)
        error = (operands["c"].double() - expected).abs()
        assert bool((error <= 2**-8 * expected.abs() + 2**-20 * magnitude).all())


def test_an_algorithm_is_found_again_by_its_name(workspace: torch.Tensor) -> None:
    """The 64 bytes say all: the same algorithm for the same product, and for another M where it runs there."""
    operands = operands_of(PLAIN, device="cuda")
    matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands)
    for algorithm in cublaslt.BACKEND.candidates(matmul, pointers, 32):
        kept = stored_algorithm(cublaslt.BACKEND.kept(matmul, algorithm).name)
        found = cublaslt.BACKEND.settled(cublaslt.BACKEND.prepare(PLAIN, 0), pointers, kept)
        assert found is not None
        assert (found.data, found.workspace_bytes, found.source) == (
            algorithm.data,
            algorithm.workspace_bytes,
            "kept",
        )
    other = replace(PLAIN, M=64)
    settled = cublaslt.BACKEND.settled(
        cublaslt.BACKEND.prepare(other, 0), pointers_of(operands_of(other, device="cuda")), kept
    )
    assert settled is not None


def test_a_call_can_be_captured(workspace: torch.Tensor) -> None:
    """A replay reads what lies at the addresses then, and allocates nothing."""
    operands = operands_of(replace(PLAIN, bias=True), device="cuda")
    matmul, pointers = cublaslt.BACKEND.prepare(replace(PLAIN, bias=True), 0), pointers_of(operands)
    for algorithm in cublaslt.BACKEND.candidates(matmul, pointers, 16):
        call = matmul.bind(algorithm, pointers, workspace.data_ptr(), len(workspace))
        call(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(torch.cuda.current_stream().cuda_stream)
        operands["a"].copy_(operands["a"].flip(0))
        operands["c"].zero_()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        expected = expected_of(replace(PLAIN, bias=True), operands)
        assert torch.equal(operands["c"], expected.bfloat16())


def test_the_measured_process_finds_and_checks_them(tmp_path: Path) -> None:
    """Names, calls on copies of the weights, and the same check that configs are put to."""
    arch, problem = detect_arch() or "", GemmProblem(64, 512, 1024)
    module, _ = make_module(tmp_path, problem, [Config("tiled", 64, 64, 64)], arch)
    path = str(write_module(tmp_path, module))
    gemm: Any = LoadedGemm(Session(path, problem, arch, 0, str(tmp_path), Budget(rotating_mb=8)))
    algorithms = Algorithms(gemm)
    names = algorithms.names()
    assert len(names) > 8
    checking = Checking(problem, get_op(problem.op), arch, gemm.module.reference, gemm.operands)
    for name in names:
        call = algorithms.call(name)
        for copy in range(gemm.copies):
            call(copy)
        verdict = checking.check(algorithms.subject(name))
        assert verdict.passed, dataclasses.asdict(verdict)
