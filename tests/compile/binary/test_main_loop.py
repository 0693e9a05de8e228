"""Tests of genkern.compile.binary.main_loop: compiled kernels against nvdisasm's text, and code made by hand."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import triton
from compiled import compile_all
from hypothesis import given
from hypothesis import strategies as st
from long_tests import LONG
from machine_words import branch, code
from small_gemms import GEMV, TILED, make_module, specs_of
from triton_matmul import compile_matmul

from genkern.compile.binary.code_object import read_resources
from genkern.compile.binary.main_loop import MainLoop, main_loop, main_loop_of_assembly
from genkern.compile.cache import _RECORD, BinaryCache, _sealed, _unsealed
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Resources

NO_OPERATION, HMMA, FFMA, LDS, LDG, BAR, EXIT = 0x918, 0x23C, 0x223, 0x984, 0x981, 0xB1D, 0x94D
# Mnemonics by the field that counts them.
MNEMONICS = {
    "matrix": r"(H|HG|UTCH)MMA\b",
    "fma": r"FFMA2?\b|HFMA2\S* (?!R\d+, -RZ, RZ, )",
    "shared": r"(LDS|LDSM|STS|STSM)\b",
    "global_loads": r"(LDG|LDGSTS|UTMALDG)\b",
    "syncs": r"(BAR|SYNCS|DEPBAR|LDGDEPBAR|WARPGROUP|UTCBAR)\b",
}


def text_of(cubin: bytes, folder: Path) -> list[str]:
    """Labels and instructions, without their predicates, as nvdisasm prints them."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    text = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(\.L_x_\d+:)|^\s+/\*[0-9a-f]+\*/\s+(?:@\S+\s+)?(.*?)\s*;", text, re.MULTILINE)
    return [label or line for label, line in found]


def loops_of(lines: Sequence[str]) -> list[list[str]]:
    """From the label to the branch back, of each such branch, the shortest first."""
    found = []
    for at, line in enumerate(lines):
        for label in re.findall(r"^BRA.*\((\.L_x_\d+)\)", line):
            start = lines.index(label + ":")
            if start < at:
                found.append([line for line in lines[start : at + 1] if not line.startswith(".L_x")])
    return sorted(found, key=len)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", *(["sm_120"] if LONG else [])])
def test_loop_is_that_of_nvdisasm(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each instruction set, the loop with the matrix instructions has as many of each kind as the text has."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel: Any = compile_matmul(triton_target(gpu_for_arch(arch)), (64, 64, 64))
    found = read_resources(kernel.asm["cubin"], "cuda", 0)
    loop = next(loop for loop in loops_of(text_of(kernel.asm["cubin"], tmp_path)) if "MMA" in "".join(loop))
    counts = {name: sum(bool(re.match(kind, line)) for line in loop) for name, kind in MNEMONICS.items()}
    assert (found.loop_instructions, found.loop_matrix) == (len(loop), counts["matrix"])
    assert (found.loop_fma, found.loop_shared) == (counts["fma"], counts["shared"])
    assert (found.loop_loads, found.loop_syncs) == (counts["global_loads"], counts["syncs"])
    assert min(counts["matrix"], counts["global_loads"], counts["syncs"]) > 0


def test_gemv_multiplies_without_matrix_instructions(tmp_path: Path) -> None:
    (gemv,) = compile_all(tmp_path, GemmProblem(1, 256, 2048), [GEMV], "sm_90")
    assert gemv.resources.loop_matrix == 0
    assert (gemv.resources.loop_fma or 0) > 0
    assert (gemv.resources.loop_loads or 0) > 0


def test_the_loop_with_matrix_instructions_is_the_main_one() -> None:
    """A longer loop without them is not it, nor the loop around both, nor what waits inside."""
    wait = code(LDS, branch(-2, predicate=0))
    longer = code(*[FFMA] * 9, branch(-10, predicate=1))
    main = code(LDG, wait, BAR, HMMA, HMMA, FFMA, branch(-8, predicate=8))
    around = branch(-(len(longer) + len(main)) // 16 - 2, predicate=0)
    text = code(NO_OPERATION, longer, main, HMMA, around, EXIT, branch(-1))
    assert main_loop(text, 90) == MainLoop(8, matrix=2, fma=1, shared=1, global_loads=1, syncs=1)


def test_code_out_of_line_widens_no_loop() -> None:
    """A wait behind the kernel's end branches back over most of it: that is no loop, nor the wait a part of one."""
    body = code(LDG, branch(5, predicate=0), HMMA, branch(-4, predicate=1))
    text = code(HMMA, HMMA, body, HMMA, EXIT, NO_OPERATION, branch(-7))
    assert main_loop(text, 90) == MainLoop(4, matrix=1, fma=0, shared=0, global_loads=1, syncs=0)


def test_without_matrix_instructions_multiply_adds_then_length_tell() -> None:
    short, long = code(FFMA, branch(-2, predicate=0)), code(LDG, LDG, LDG, branch(-4, predicate=0))
    assert main_loop(short + long + code(EXIT), 90) == MainLoop(2, 0, 1, 0, 0, 0)
    assert main_loop(code(LDS, branch(-2, predicate=0)) + long, 90) == MainLoop(4, 0, 0, 0, 3, 0)


def test_branches_before_sm_90_have_another_distance() -> None:
    body = [HMMA] * 300
    for capability, long in ((80, False), (89, False), (90, True), (120, True)):
        text = code(FFMA, *body, branch(-301, predicate=2, long=long), EXIT)
        assert main_loop(text, capability) == MainLoop(301, 300, 0, 0, 0, 0), capability


def test_no_loop_and_no_known_encoding_are_none() -> None:
    assert main_loop(b"", 90) is None
    assert main_loop(code(HMMA, branch(1, predicate=0), HMMA, EXIT, branch(-1)), 90) is None
    looping = code(HMMA, branch(-2, predicate=0))
    assert main_loop(looping, 90) is not None
    assert main_loop(looping, 75) is main_loop(looping, 130) is None


@given(st.lists(st.one_of(st.binary(min_size=16, max_size=16), st.integers(-20, 20).map(lambda n: branch(n, 0)))))
def test_any_bytes_have_a_loop_or_none(parts: list[bytes]) -> None:
    """Damaged code raises nothing, and no loop has more instructions than the code."""
    for capability in (80, 90):
        found = main_loop(b"".join(parts) + b"odd", capability)
        assert found is None or 0 < found.instructions <= len(parts)


def test_entries_without_counts_are_still_read(tmp_path: Path) -> None:
    """An entry of the cache that was stored before there were counts is used, and says that they are unknown."""
    module, _ = make_module(tmp_path, GemmProblem(64, 64, 256), [TILED], "sm_90")
    cache = BinaryCache(tmp_path / "cache")
    stored = cache.put("00" * 32, specs_of(module, TILED)[0], "symbol", Resources(90, loop_matrix=4), {})
    record_path = Path(stored.path) / _RECORD
    record = _unsealed(record_path.read_bytes())
    assert record is not None
    old = {name: value for name, value in record["resources"].items() if not name.startswith("loop_")}
    record_path.write_bytes(_sealed({**record, "resources": old}))
    found = cache.get("00" * 32)
    assert isinstance(found, Binary)
    assert found.resources == Resources(90)


AMD_LOOP = """
kernel:                                 ; @kernel
; %bb.0:
	s_load_dwordx4 s[0:3], s[0:1], 0x0
	buffer_load_dwordx4 v[0:3], v4, s[8:11], 0 offen
	s_cbranch_scc1 .LBB0_3
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
	s_waitcnt vmcnt(0)
	ds_write_b128 v5, v[0:3]
	s_barrier
	ds_read_b128 v[6:9], v10
	buffer_load_dwordx4 v[0:3], v4, s[8:11], 0 offen
	v_mfma_f32_16x16x16_bf16 a[0:3], v[6:7], v[8:9], a[0:3]
	v_mfma_f32_16x16x16_bf16 a[4:7], v[6:7], v[8:9], a[4:7]
	s_add_i32 s4, s4, -1
	s_cbranch_scc0 .LBB0_1
; %bb.2:
	s_branch .LBB0_4
.LBB0_3:
	v_mov_b32_e32 v1, 0
.LBB0_4:
	s_endpgm
	.section	.rodata
"""


def test_amds_assembly_says_as_much() -> None:
    """What lies before and behind the loop does not count; without a loop there is none."""
    assert main_loop_of_assembly(AMD_LOOP) == MainLoop(9, matrix=2, fma=0, shared=2, global_loads=1, syncs=2)
    assert main_loop_of_assembly(AMD_LOOP.replace("s_cbranch_scc0 .LBB0_1", "s_nop 0")) is None
    assert main_loop_of_assembly("") is None
