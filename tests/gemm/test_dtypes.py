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
    triton_type = getattr(language, dtype.language)
    assert str(triton_type) in (dtype.triton, dtype.language)
    assert triton_type.primitive_bitwidth == dtype.bits
    assert dtype.is_float8 == triton_type.is_fp8()
    assert dtype.is_integer == triton_type.is_int()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_limits_and_guards_of_a_type_are_as_in_pytorch(dtype: DType) -> None:
    """The largest, the integers that it has all of, and a guard that is no number where it has such bits."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype.torch)
    limits = torch.iinfo(kind) if dtype.is_integer else torch.finfo(kind)
    assert dtype.largest == limits.max
    if dtype.is_integer:
        assert dtype.exact == limits.max
        return
    assert all(torch.tensor(float(n)).to(kind).item() == n for n in (1, 3, dtype.exact - 1, dtype.exact))
    assert torch.tensor(dtype.exact + 1.0, dtype=torch.float64).to(kind).item() != dtype.exact + 1
    signed = dtype.guard - (1 << dtype.bits) if dtype.guard >> (dtype.bits - 1) else dtype.guard
    bits = torch.tensor([signed], dtype={8: torch.int8, 16: torch.int16, 32: torch.int32}[dtype.bits])
    assert bits.view(kind).float().isnan().item()


def test_codes_of_a_type_are_those_of_cudas_headers() -> None:
    """CUtensorMapDataType of cuda.h (bytes are UINT8), and cudaDataType of library_types.h."""
    maps = {"fp32": 7, "fp16": 6, "bf16": 9, "int32": 3}
    assert {name: row.tensor_map for name, row in DTYPES.items() if row.tensor_map} == maps
    cuda = {"fp32": 0, "fp16": 2, "bf16": 14, "int8": 3, "int32": 10, "fp8e4m3fn": 28, "fp8e5m2": 29}
    assert {name: row.cuda for name, row in DTYPES.items() if row.cuda is not None} == cuda


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
    with pytest.raises(InputError, match="fp32, fp16, bf16"):
        parse_dtype(text, "sm_90")


@given(st.text(max_size=20))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    """Nothing but InputError escapes."""
    try:
        dtype = parse_dtype(text, "gfx942")
    except InputError:
        return
    assert dtype is DTYPES[dtype.name]
