"""Tests of timing/libraries.py: names of libraries and of their calls."""

from __future__ import annotations

import pytest

from genkern.errors import InputError
from genkern.timing.libraries import (
    AITER,
    AsmKernel,
    StoredAlgorithm,
    asm_kernel,
    call_name,
    is_call,
    library_of,
    parse_libraries,
    stored_algorithm,
)

KEPT = StoredAlgorithm(131000, bytes(range(64)))


def test_an_algorithm_goes_through_its_name() -> None:
    """The 64 bytes and the version come back; a name is one line without what YAML or CSV would quote."""
    assert stored_algorithm(KEPT.name) == KEPT
    assert KEPT.name.startswith("cublaslt 131000 000102")
    assert is_call(KEPT.name)
    assert is_call("torch")


@pytest.mark.parametrize(
    "name", ["cublaslt", KEPT.name[:-1], KEPT.name + "0", KEPT.name.upper(), "cublaslt 0 " + "00" * 64, "", "vendor"]
)
def test_other_names_are_no_algorithm(name: str) -> None:
    """A cut or changed one is not taken for another algorithm."""
    assert stored_algorithm(name) is None
    assert not is_call(name)


def test_an_assembly_kernel_goes_through_its_name() -> None:
    """Solidx, splits and symbol come back; AITER's other calls have names too, and a cut one is none."""
    kernel = AsmKernel(5, 13, "_ZN5aiter39bf16gemm_fp32bf16_tn_64x64_splitk_cleanE")
    assert asm_kernel(kernel.name) == kernel
    calls = (kernel.name, "aiter ck", "aiter cktile", "aiter tuned skinny")
    assert all(is_call(name) and library_of(name) == "aiter" for name in calls)
    assert asm_kernel("aiter ck") is None
    assert not any(
        map(is_call, ("aiter", "aiter 0", "aiter asm 0 1 x", "aiter asm 1 1", "aiter asm 1 1 a b", "aiter x"))
    )


def test_the_library_of_a_call_by_its_name() -> None:
    """Names of configs are genkern's own; PyTorch's call has another name among the finals than in results."""
    assert library_of(KEPT.name) == library_of("cublaslt") == "cublaslt"
    assert library_of("vendor") == library_of("torch") == "torch"
    assert library_of("tiled_BM16_BN16_BK16_GM1_SK1_nW4_nS2") == "triton"
    assert library_of("cute_wgmma_BM128_BN168_BK64_GM8_SK1_nW8_nS4_ping_pong") == "cute"
    assert (call_name("vendor"), call_name(KEPT.name)) == ("torch", KEPT.name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", "triton,cute,torch,cublaslt,hipblaslt,aiter"),
        ("cublaslt,triton", "triton,cublaslt"),
        ("cublaslt,cute", "cute,cublaslt"),
        (" Torch , torch", "torch"),
        ("torch,all", "triton,cute,torch,cublaslt,hipblaslt,aiter"),
    ],
)
def test_libraries_by_name(text: str, names: str) -> None:
    """Each once and in one order, however it is written."""
    assert parse_libraries(text) == names


@pytest.mark.parametrize("text", ["", "rocblas", "torch,", "torch;triton"])
def test_an_unknown_library_is_refused(text: str) -> None:
    """In one line that has all names."""
    with pytest.raises(InputError, match=r"--libtype: .*all, triton, cute, torch, cublaslt, hipblaslt, aiter"):
        parse_libraries(text)


@pytest.mark.parametrize("text", ["asm", "triton,ck", "OPUS", "flydsl", "skinny", "cktile"])
def test_libtypes_of_aiters_lead_to_aiter(text: str) -> None:
    """Its kernels race under its own name."""
    with pytest.raises(InputError, match=AITER):
        parse_libraries(text)
