"""Tests of genkern/files/exchange/tunableop.py: sizes from and for PyTorch's TunableOp."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from peer_files import TUNABLEOP

from genkern.errors import InputError
from genkern.files.exchange import tunableop
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_full

CONFIG = Config("tiled", 16, 16, 32)
FP8 = GemmProblem(16, 256, 512, "a8w8", "fp8e4m3fn", "fp8e4m3fn")
PROBLEMS = [
    GemmProblem(16, 256, 512),
    GemmProblem(16, 256, 512, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", bias=True),
    GemmProblem(32, 48, 64, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", row_major_b=True),
    GemmProblem(32, 48, 64, row_major_a=False),
    GemmProblem(32, 48, 64, row_major_a=False, row_major_b=True),
    GemmProblem(32, 48, 64, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", own=(("precision", "tf32"),)),
    FP8,
    replace(FP8, own=(("scales", "per_token"),), bias=True),
]


def rendered(problem: GemmProblem) -> str:
    return tunableop.render([TimedSize(problem, {CONFIG: 1.0}, "gfx942")])[""]


def test_results_are_read_as_sizes() -> None:
    """BLAS's [m, n] is C's transpose; batched GEMMs and types that genkern has not are counted."""
    read = tunableop.read(TUNABLEOP, "f", "tunableop_results0.csv", None)
    floats = ("fp32", "fp32", "fp32")
    assert [each.problem for each in read.candidates] == [
        GemmProblem(4096, 25088, 64, "a16w16", *floats, row_major_a=False, row_major_b=True),
        GemmProblem(4149, 5120, 17408),
        GemmProblem(16, 3072, 768, "a16w16", "fp16", "fp16", "fp16", bias=True),
        GemmProblem(12288, 64, 2048, "a8w8", "fp8e4m3fn", "fp8e4m3fn", own=(("scales", "per_token"),)),
        GemmProblem(128, 64, 256, "a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz", "fp16", bias=True),
    ]
    assert all(each.config is None for each in read.candidates)
    assert sum(read.left_out.values()) == 2


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("GemmTunableOp_tf32_TN,tn_4096_16_7168_ld_7168_7168_4096,Gemm_Rocblas_1,0.1", "tf32"),
        ("GemmTunableOp_tf32_NN,nn_64_32_128,Default,0.1", "tf32"),
        ("GemmAndBiasTunableOp_tf32_TN,tn_64_32_128_ld_128_128_64,Default,0.1", "tf32"),
        ("GemmTunableOp_float_TN,tn_4096_16_7168_ld_7168_7168_4096,Gemm_Rocblas_1,0.1", "ieee"),
    ],
)
def test_tf32_is_said(line: str, precision: str) -> None:
    """A product of tf32 is another problem than one of float32."""
    (read,) = tunableop.read(line, "f", "tunableop_results0.csv", None).candidates
    assert read.problem.dtype_a == read.problem.dtype_c == "fp32"
    assert dict(read.problem.own).get("precision", "ieee") == precision


@pytest.mark.parametrize("types", ["c10::complex<float>", "c10::complex<double>", "double", "floatx", "BFloat16_Half"])
def test_other_types_are_counted(types: str) -> None:
    """Complex numbers are none of float, whatever their name contains."""
    text = f"GemmTunableOp_{types}_NN,nn_64_32_128_ld_64_128_64,Default,0.1\n"
    read = tunableop.read(text + text, "f", "tunableop_results0.csv", None)
    assert (read.candidates, read.left_out) == ([], {f"Gemm of {types}": 2})


def test_what_the_target_cannot_compute_is_counted() -> None:
    """A list for a GPU has no size that a run on it would refuse."""
    line = "GemmTunableOp_tf32_TN,tn_4096_16_7168_ld_7168_7168_4096,Gemm_Rocblas_1,0.1"
    assert tunableop.read(line, "f", "tunableop_results0.csv", "sm_90").candidates
    assert tunableop.read(line, "f", "tunableop_results0.csv", "gfx90a").left_out.total() == 1


@pytest.mark.parametrize(
    ("signature", "is_padded"),
    [
        ("tn_2048_16_1024_ld_1024_1024_2048", False),
        ("tn_2048_16_1024_ld_3072_1024_2048", True),
        ("tn_2048_16_1024_ld_1024_2048_2048", True),
        ("tn_2048_16_1024_ld_1024_1024_4096", True),
        ("nt_2048_16_1024_ld_2048_16_2048", False),
        ("nt_2048_16_1024_ld_2048_64_2048", True),
        ("nn_2048_16_1024", False),
    ],
)
def test_padded_rows_are_told(signature: str, is_padded: bool) -> None:
    """The size is taken, with a word that it is tuned without the padding."""
    line = f"GemmTunableOp_BFloat16_{signature[:2].upper()},{signature},Default,0.1"
    read = tunableop.read(line, "f", "tunableop_results0.csv", None)
    (candidate,) = read.candidates
    assert candidate.problem.size == "16x2048x1024"
    assert read.notes.total() == is_padded


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_round_trip(problem: GemmProblem) -> None:
    """Layout, types, bias and scales come back; leading dimensions are those of operands without gaps."""
    assert tunableop.obstacle(problem) == ""
    read = tunableop.read(rendered(problem), "f", "tunableop_untuned0.csv", None)
    assert [each.problem for each in read.candidates] == [problem]
    assert read.notes.total() == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_pytorch_reads_what_is_written(problem: GemmProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own reader makes operands of the problem's shapes, strides and types of the line."""
    made: list[tuple[torch.Tensor, ...]] = []
    for place, name in ((torch, "mm"), (torch, "_scaled_mm"), (torch.nn.functional, "linear")):
        monkeypatch.setattr(place, name, lambda *operands, **more: made.append(operands))
    for name in ("rand", "randn", "full", "ones", "tensor"):
        monkeypatch.setattr(torch, name, lambda *shape, **more: empty(shape, more.get("dtype")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cuda.tunable._process_single_offline_gemm(rendered(problem), 0)  # type: ignore[attr-defined]
    ((a, b, *_),) = made
    b = b.mT if problem.bias and problem.op == "a16w16" else b
    M, N, K = problem.M, problem.N, problem.K
    assert (tuple(a.shape), tuple(b.shape)) == ((M, K), (K, N))
    assert (a.stride(1) == 1, b.stride(1) == 1) == (problem.row_major_a, problem.row_major_b)
    assert {a.dtype, b.dtype} == {getattr(torch, DTYPES[problem.dtype_a].torch)}


def empty(shape: tuple[Any, ...], dtype: torch.dtype | None) -> torch.Tensor:
    """Of the CPU, whichever device is asked for; the last of `full`'s arguments is the value."""
    sizes = shape[0] if isinstance(shape[0], tuple) else shape
    return torch.empty([size for size in sizes if isinstance(size, int)], dtype=dtype)


def test_what_pytorch_does_not_tune() -> None:
    """Vectors, activations, other formats and mixed types have a reason."""
    for other in ({"M": 1}, {"activation": "relu"}, {"op": "a16w4"}, {"dtype_c": "fp32"}):
        assert tunableop.obstacle(replace(GemmProblem(16, 256, 512), **other))  # type: ignore[arg-type]
    for other in ({"dtype_a": "int8"}, {"row_major_b": True}):
        assert tunableop.obstacle(replace(FP8, **other))  # type: ignore[arg-type]
    assert tunableop.obstacle(GemmProblem(16, 256, 512, bias=True, row_major_b=True))
    assert "full sums" in tunableop.obstacle(as_full(FP8))
    assert tunableop.config_obstacle(CONFIG) == ""


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "GemmTunableOp_float_NT,tn_1_2_3",
        "GemmTunableOp_float_NT",
        "GemmTunableOp_float_NT,nt_0_2_3",
        "GemmTunableOp_float_NT,nt_9999999999_2_3",
    ],
)
def test_what_is_no_line_of_it(line: str) -> None:
    """One line that says where."""
    with pytest.raises(InputError, match="line 2"):
        tunableop.read(f"Validator,PT_VERSION,2.2.0\n{line}\n", "f", "tunableop_x.csv", None)
