"""Tests of genkern.kernels.source: what Triton's compiler is told of a kernel's arguments shows in its instructions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from long_tests import drawn
from small_gemms import make_module, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.source import ast_source


def text_of(folder: Path, arch: str, problem: GemmProblem, config: Config) -> str:
    """The assembly text of the one kernel of a config."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    module, loaded = make_module(folder, problem, [config], arch)
    (spec,) = specs_of(module, config)
    source = ast_source(loaded, spec)
    made = compiler.compile(source, target(*triton_target(gpu_for_arch(arch))), dict(spec.options))
    return str(made.asm["amdgcn" if arch.startswith("gfx") else "ptx"])


# What all rows are multiples of, in elements of bf16, and the bytes that a lane can load or store of them at a time.
ROWS = [(8, 16), (4, 8), (2, 4)]


@pytest.mark.parametrize(("elements", "lane_bytes"), drawn(ROWS, 2))
@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_loads_are_as_wide_as_rows_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, elements: int, lane_bytes: int
) -> None:
    """Whatever overhangs, a lane loads and stores as many bytes as all rows are multiples of; loads are pipelined."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    problem = GemmProblem(64 + elements, 128 + elements, 192 + elements, row_major_a=False, row_major_b=True)
    text = text_of(tmp_path, arch, problem, Config("tiled", 64, 64, 64, 1, 1, 4, 3))
    if arch == "sm_90":
        loads = {int(match, 0) for match in re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^;]*?\], (\w+),", text)}
        stores = {"": 1, ".v2": 2, ".v4": 4}
        widths = {stores[found] * int(bits) // 8 for found, bits in re.findall(r"st\.global(\.v\d)?\.b(\d+)", text)}
        assert widths == {lane_bytes}
    else:
        numbers = {"short": 2, "ushort": 2, "dword": 4, "dwordx2": 8, "dwordx4": 16}
        loads = {numbers[found] for found in re.findall(r"(?:global|buffer)_load_(\w+)", text)}
        # A lane has four numbers of a row of C.
        widths = {numbers[found] for found in re.findall(r"(?:global|buffer)_store_(\w+)", text)}
        assert widths == {min(lane_bytes, 8)}
    assert loads == {lane_bytes}
