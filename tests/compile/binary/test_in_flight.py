"""Tests of genkern.compile.binary.in_flight: what writes registers before the wgmma that reads them is done is
found.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from compiled import compile_all
from forms import made
from long_tests import pairs
from machine_words import branch, instruction
from small_gemms import TILED

from genkern.compile import compiler
from genkern.compile.binary.code_object import fault_of
from genkern.compile.binary.in_flight import overwrites
from genkern.compile.cache import BinaryCache, Failure
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome

MOV, STG, EXIT, NO_OPERATION = 0x202, 0x986, 0x94D, 0x918


def wgmma(first: int, ends_group: bool = True, operation: int = 0xDF0) -> bytes:
    """HGMMA of registers first to first + 3 by what a descriptor says; its sums are in 24 and on."""
    return struct.pack("<QQ", operation | 0x7000 | 24 << 16 | first << 24, (0 if ends_group else 7) << 20 | 7 << 23)


def wait(left: int) -> bytes:
    """WARPGROUP.DEPBAR.LE gsb0, left"""
    return struct.pack("<QQ", 0x79C5 | 1 << 47, 0x10000 | left << 8)


def writes(register: int, operation: int = MOV) -> bytes:
    return struct.pack("<QQ", operation | 0x7000 | register << 16, 7 << 23)


def found(*parts: bytes, capability: int = 90) -> int | None:
    return overwrites(b"".join((*parts, instruction(EXIT))), capability)


@pytest.mark.parametrize("register", [88, 91])
def test_a_write_before_the_wait_is_found(register: int) -> None:
    assert found(wgmma(88), writes(register)) == 16
    assert found(wgmma(88), wait(0), writes(register)) is None


@pytest.mark.parametrize("register", [87, 92, 24, 255])
def test_other_registers_may_be_written(register: int) -> None:
    assert found(wgmma(88), writes(register)) is None


def test_a_wait_that_leaves_groups_is_for_the_oldest() -> None:
    assert found(wgmma(88), wgmma(92), wait(1), writes(88)) is None
    assert found(wgmma(88), wgmma(92), wait(1), writes(92)) == 48
    assert found(wgmma(88), wgmma(92), wait(2), writes(88)) == 48


def test_products_of_one_group_end_together() -> None:
    group = wgmma(88, ends_group=False), wgmma(92)
    assert found(*group, wgmma(96), wait(1), writes(88), writes(92)) is None
    assert found(*group, wait(1), writes(88)) == 48
    # No wait is for a group that has not ended.
    assert found(wgmma(88, ends_group=False), wait(0), writes(88)) == 32


def test_what_is_in_flight_stays_so_over_branches() -> None:
    # The next step of a loop writes what the product of the last one reads.
    assert found(writes(88), wgmma(88), wait(1), branch(-4)) == 0
    assert found(writes(88), wgmma(88), wait(0), branch(-4)) is None
    # One of two ways has no wait.
    assert found(wgmma(88), branch(1, predicate=0), wait(0), writes(88)) == 48


def test_what_writes_no_register_has_other_things_in_its_place() -> None:
    assert found(wgmma(88), writes(88, STG), writes(88, NO_OPERATION)) is None


@pytest.mark.parametrize("operation", [0x9F0, 0x9F3])
def test_products_of_shared_memory_read_no_registers(operation: int) -> None:
    assert found(wgmma(88, operation=operation), writes(88)) is None


def test_other_gpus_have_no_such_products() -> None:
    assert found(wgmma(88), writes(88), capability=100) is None


OF_WEIGHTS = [
    GemmProblem(100, 256, 1024, "a16w4", "bf16", "int8", "bf16", own=(("group", 128), ("scale_type", "bf16"))),
    GemmProblem(100, 256, 1024, "a16w8", "bf16", "fp8e4m3fn", "bf16"),
]


@pytest.mark.parametrize(("problem", "stem"), pairs(OF_WEIGHTS, ["tiled_swapped", "tiled_tma_swapped"]))
def test_converted_weights_stay_until_they_are_multiplied(problem: GemmProblem, stem: str, tmp_path: Path) -> None:
    """With Triton 3.6 and 3.7, and no wait of the kernel's own, their registers have the next step's weights before."""
    (made_here,) = compile_all(tmp_path, problem, [made(stem, 32, 64, 128, 1, 1, 4, 4)], "sm_90")
    cubin = Path(made_here.path, "kernel.cubin").read_bytes()
    assert fault_of(cubin, "cuda") == ""


def test_a_kernel_with_a_fault_is_refused_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "fault_of", lambda *_: "its code is wrong")
    with pytest.raises(AssertionError, match="its code is wrong"):
        compile_all(tmp_path, GemmProblem(64, 64, 64), [TILED], "sm_90")
    (entry,) = (tmp_path / "cache").glob("??/*")
    failure = BinaryCache(tmp_path / "cache").get(entry.name)
    assert failure == Failure(entry.name, Outcome.COMPILE_FAILED, "its code is wrong")
