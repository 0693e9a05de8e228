"""Tests of genkern.runtime.routed.row_kernels: what they compute, for which targets they compile, and their launch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import compile_here
from interpreted import Interpreter
from recording_gpu import FakeGpu
from small_gemms import TRITON_VERSION, needs_interpreter, target_of

from genkern.compile.compiler import CompileJob
from genkern.errors import ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.source_file import path_of
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.routed.row_kernels import FILE, RowCall, needed, ordering, quantizing

MIXTURE = ("experts", 8), ("scales", "per_token"), ("top_k", 2)


@needs_interpreter
def test_what_they_compute_is_what_pytorch_does(interpreter: Interpreter, tmp_path: Path) -> None:
    """Every slot in its place, and scales to the bit, also where blocks of a program end within a row."""
    script, said, errors = Path(__file__).with_name("interpreted_rows.py"), tmp_path / "said", tmp_path / "errors"
    status = interpreter.fork([str(script)], {**os.environ, "TRITON_INTERPRET": "1"}, said, errors)
    assert (said.read_text(), status) == ("done\n", 0), errors.read_text()


@pytest.mark.parametrize("arch", ["gfx942", "sm_100"])
def test_row_kernels_compile_for_other_targets(tmp_path: Path, cache_dir: Path, arch: str) -> None:
    """For targets besides that of the bundle of these tests, in the types that each has."""
    narrow = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    problems = GemmProblem(4, 128, 256, "fused_moe", narrow, narrow, own=MIXTURE), GemmProblem(4, 128, 256)
    for kernel in (kernel for problem in problems for kernel in needed(problem)):
        if kernel.name == "order_int32":
            continue
        key = kernel.spec.key(target_of(arch), TRITON_VERSION)
        job = CompileJob(key, str(path_of(FILE)), kernel.spec, target_of(arch), str(cache_dir / "binaries"), 60)
        assert compile_here(job, tmp_path).symbol == kernel.function


def test_which_a_layer_launches() -> None:
    """That of gated rows behind a plain product in 16 bits, none behind one of groups; of types and scales that no
    kernel has, PyTorch's calls.
    """
    assert [each.name for each in needed(GemmProblem(4, 128, 256))] == ["gate_bf16"]
    assert needed(GemmProblem(4, 128, 256, dtype_c="fp32")) == needed(GemmProblem(4, 128, 256, "grouped_gemm")) == ()
    wide = GemmProblem(4, 128, 256, "fused_moe", own=(("experts", 8), ("top_k", 2)))
    assert [each.name for each in needed(wide)] == ["order_int32", "order_int64"]
    narrow = replace(wide, dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn", own=MIXTURE)
    assert [each.name for each in needed(narrow)][2:] == ["quantize_per_token_bf16_fp8e4m3fn"]
    assert quantizing("bf16", "int8", "per_token") is quantizing("bf16", "fp8e4m3fn", "per_tensor") is None
    assert ordering("torch.int16") is None


def test_a_launch(routed_bundle: Bundle, routed_gpu: FakeGpu) -> None:
    """Addresses and numbers stand where the binary has its parameters; an address off 16 bytes launches nothing."""
    kernel, sha256 = ordering("torch.int64"), routed_bundle.contents.row_kernels["sm_90", "order_int64"]
    assert kernel is not None
    call = RowCall(routed_gpu, routed_bundle, sha256, kernel, (8,), {"rows": 32})
    assert call((1600, 3200, 4800))
    (launched,) = routed_gpu.driver.launched
    assert launched.grid == (8, 1, 1)
    assert [int.from_bytes(each, "little") for each in launched.parameters[:4]] == [1600, 3200, 4800, 32]
    assert not call((1608, 3200, 4800))
    assert len(routed_gpu.driver.launched) == 1


def test_another_kernels_binary(routed_bundle: Bundle, routed_gpu: FakeGpu) -> None:
    """Is refused in one line: a bundle of a genkern whose kernel takes other parameters."""
    kernel, sha256 = ordering("torch.int64"), routed_bundle.contents.row_kernels["sm_90", "order_int64"]
    assert kernel is not None
    other = replace(kernel, signature=(*kernel.signature, ("more", "i32")))
    with pytest.raises(ResultsError, match="pack it again"):
        RowCall(routed_gpu, routed_bundle, sha256, other, (8,), {"rows": 32, "more": 1})
