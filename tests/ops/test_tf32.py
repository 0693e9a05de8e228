"""a16w16 in fp32 with `precision` tf32: what multiplies it, what is refused, and how far a right result may be off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled import compile_all
from interpreted import Interpreter
from small_gemms import (
    GEMV,
    SPLIT,
    SWAPPED,
    TILED,
    TILED_TMA_SPLIT,
    kernels_of,
    make_module,
    needs_interpreter,
    specs_of,
)

from genkern.errors import InputError
from genkern.files.aiter_csv import obstacle
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.source import ast_source
from genkern.ops.a16w16.library import library, linear
from genkern.profiling.checking.bound import rounded_range, sum_error
from genkern.runtime.backends.cublaslt_api import DIALECT
from genkern.runtime.backends.lt_operation import operation_of

SIZE = {"M": 16, "N": 64, "K": 64, "dtype_a": "fp32", "dtype_b": "fp32"}
HAVE_TF32 = "gfx942", "sm_90"


def problem_of(m: int, n: int, k: int, precision: str = "tf32", **more: object) -> GemmProblem:
    entry = {"M": m, "N": n, "K": k, "dtype_a": "fp32", "dtype_b": "fp32", "precision": precision, **more}
    return resolve(entry, GemmDefaults(), "sm_90").problem


def test_all_bits_unless_it_is_said() -> None:
    """A problem that says ieee is the one that says nothing; tf32 is another, by its name as well."""
    plain = resolve(SIZE, GemmDefaults(), "sm_90").problem
    assert problem_of(16, 64, 64, "ieee") == plain
    assert problem_of(16, 64, 64) != plain
    assert "tf32" in problem_of(16, 64, 64).name
    assert obstacle(problem_of(16, 64, 64)), "AITER's CSV has no column for it"


@pytest.mark.parametrize(
    ("more", "arch", "reason"),
    [
        ({"dtype_a": "bf16", "dtype_b": "bf16"}, "sm_90", "is for operands in fp32, not bf16"),
        ({}, "gfx950", "gfx950 does not multiply tf32"),
        ({}, "gfx1100", "gfx1100 does not multiply tf32"),
        ({"precision": "tf16"}, "sm_90", "'tf16' is not one of ieee, tf32"),
    ],
)
def test_what_is_refused(more: dict[str, str], arch: str, reason: str) -> None:
    """In one line: other operands, devices that have no tf32, and other words."""
    with pytest.raises(InputError, match=reason):
        resolve({**SIZE, "precision": "tf32", **more}, GemmDefaults(), arch)


@pytest.mark.parametrize(("precision", "multiplies"), [("tf32", ".tf32.tf32"), ("ieee", "fma.rn.f32")])
def test_the_instruction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, multiplies: str) -> None:
    """A matrix instruction on sm_90; with all bits multiply-adds of single threads, and no other."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    config = Config("tiled", 64, 64, 32, 1, 1, 4, 2)
    module, loaded = make_module(tmp_path, problem_of(128, 128, 256, precision), [config], "sm_90")
    (spec,) = specs_of(module, config)
    ptx = compiler.compile(ast_source(loaded, spec), target, dict(spec.options)).asm["ptx"]
    assert {text for text in (".tf32.tf32", "fma.rn.f32") if text in ptx} == {multiplies}


@pytest.mark.parametrize("arch", HAVE_TF32)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """With and without a dot, in each layout of B, masked and not."""
    for turn, row_major_b in enumerate(("T", "N")):
        problem = problem_of(100, 208, 320, rowMajorB=row_major_b)
        assert compile_all(tmp_path, problem, [TILED, SWAPPED, TILED_TMA_SPLIT][turn:], arch, HAVE_TF32)
    assert compile_all(tmp_path, problem_of(1, 208, 320), [GEMV], arch, HAVE_TF32)


@needs_interpreter
@pytest.mark.parametrize(("size", "config"), [((37, 40, 70), SPLIT), ((20, 48, 96), SWAPPED), ((1, 40, 160), GEMV)])
def test_kernels_pass_the_check(interpreter: Interpreter, size: tuple[int, int, int], config: Config) -> None:
    """The same texts as with all bits, but for what tl.dot is asked for."""
    verdict = interpreter.check(problem_of(*size, bias_vector=True), config)
    assert verdict["passed"], verdict


def truncated(x: torch.Tensor) -> torch.Tensor:
    """As tf32 has it."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_dropped_bits_are_within_the_bound() -> None:
    """And beyond that of products with all bits, so that such a kernel is no ieee one."""
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(200, 200, generator=draw) for _ in range(2))
    found, expected, magnitude = truncated(a) @ truncated(b), a @ b, a.abs() @ b.abs()
    for as_tf32 in (True, False):
        least, most = rounded_range(expected, sum_error(magnitude, 2.0**-23, 200, "none", as_tf32), torch.float32)
        assert bool(((least <= found) & (found <= most)).all()) == as_tf32


def test_the_library_is_asked_for_it() -> None:
    """cuBLASLt by its compute type, PyTorch by its setting, which is as before after the call."""
    assert operation_of(problem_of(16, 64, 64), DIALECT).compute == DIALECT.compute["tf32"]
    assert operation_of(problem_of(16, 64, 64, "ieee"), DIALECT).compute == DIALECT.compute["fp32"]
    assert linear(problem_of(16, 64, 64)) is None
    assert linear(problem_of(16, 64, 64, "ieee")) is not None
    before = torch.backends.cuda.matmul.allow_tf32
    a, b, bias = torch.randn(16, 64), torch.randn(64, 64).T, torch.randn(64)
    found = library(problem_of(16, 64, 64, bias_vector=True), {"a": a, "b": b, "bias": bias})
    assert torch.allclose(found, a @ b + bias, rtol=1e-5, atol=1e-5)
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_texts_differ_in_the_product_alone() -> None:
    """With all bits tl.dot is told so; tf32 is what it takes by itself."""
    for config in (TILED, SWAPPED):
        one, other = (
            "\n".join(kernels_of(generate(problem_of(64, 64, 64, word), [config], "sm_90")).values())
            for word in ("ieee", "tf32")
        )
        assert one.replace(', input_precision="ieee"', "") == other != one
