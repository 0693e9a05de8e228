"""Tests of genkern.gemm.dtypes: every name that tools use for a type, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES, DType, parse_dtype
from genkern.gemm.gpus import known_archs


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
def test_every_spelling_means_the_type(dtype: DType, arch: str) -> None:
    """genkern's, Triton's and PyTorch's names, in any case and with spaces around, mean one type on every target."""
    spellings = [dtype.name, f" {dtype.name.upper()} ", f"torch.{dtype.torch}", dtype.torch, dtype.triton]
    assert {parse_dtype(spelling, arch) for spelling in spellings} == {dtype}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_pytorch_and_triton_know_the_type(dtype: DType) -> None:
    """The names given for PyTorch and Triton exist there, with the stated size."""
    torch = pytest.importorskip("torch")
    language = pytest.importorskip("triton.language")
    assert getattr(torch, dtype.torch).itemsize == dtype.size_bytes
    names = {"i8": "int8", "i32": "int32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    names |= {"fp8e4nv": "float8e4nv", "fp8e4b8": "float8e4b8", "fp8e5": "float8e5", "fp8e5b16": "float8e5b16"}
    triton_type = getattr(language, names[dtype.triton])
    assert str(triton_type) in (dtype.triton, names[dtype.triton])
    assert triton_type.primitive_bitwidth == 8 * dtype.size_bytes
    assert dtype.is_float8 == triton_type.is_fp8()
    assert dtype.is_integer == triton_type.is_int()


@pytest.mark.parametrize("arch", known_archs())
def test_fp8_follows_the_target(arch: str) -> None:
    """fp8 and bf8 are the fnuz encodings on gfx942, which computes in no other, and the OCP ones elsewhere."""
    tail = "fnuz" if arch == "gfx942" else ""
    assert parse_dtype("fp8", arch).name == (f"fp8e4m3{tail}" if tail else "fp8e4m3fn")
    assert parse_dtype("fp8e4m3", arch) is parse_dtype("fp8", arch)
    assert parse_dtype("bf8", arch).name == f"fp8e5m2{tail}"


@pytest.mark.parametrize(
    "text", ["", "float", "fp64", "int4", "bf17", "fp8e3m4", "torch.", "None", "__class__", "fp16; x"]
)
def test_unknown_types_are_refused(text: str) -> None:
    """A type that no kernel takes is refused with the list of those that are; `float` is fp32, as in C."""
    if text == "float":
        assert parse_dtype(text, "sm_90").name == "fp32"
        return
    with pytest.raises(InputError, match="use one of fp32, fp16, bf16"):
        parse_dtype(text, "sm_90")


@given(st.text(max_size=20))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    """Nothing but InputError escapes."""
    try:
        dtype = parse_dtype(text, "gfx942")
    except InputError:
        return
    assert dtype is DTYPES[dtype.name]
