"""Tests of profiling/cuda/icache.py."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from long_tests import spread

from genkern.errors import ProfilerError
from genkern.profiling.cuda.icache import KERNEL, MULTIPLY_ADDS, InstructionCacheFlush, evicting_ptx


def test_no_two_instructions_are_equal() -> None:
    """Nothing for a compiler to fold or to loop over."""
    lines = re.findall(r"^fma.*$", evicting_ptx(), re.MULTILINE)
    assert len(lines) == len(set(lines)) == MULTIPLY_ADDS


@pytest.mark.parametrize("arch", spread(["sm_90", "sm_80"], 2))
def test_the_code_is_larger_than_the_caches(arch: str, tmp_path: Path) -> None:
    """NVIDIA's assembler takes it, and leaves more than 512 KiB of code."""
    ptxas = pytest.importorskip("triton").knobs.nvidia.ptxas.path
    source, binary = tmp_path / "evict.ptx", tmp_path / "evict.cubin"
    source.write_text(evicting_ptx())
    subprocess.run([ptxas, f"-arch={arch}", str(source), "-o", str(binary)], check=True, capture_output=True)
    assert binary.stat().st_size > 512 * 1024


class FakeDriver:
    """libcuda as far as a launch needs it."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.launches: list[tuple[Any, ...]] = []

    def cuModuleLoadData(self, _module: Any, image: bytes) -> int:
        assert image.endswith(b"}\n")
        return self.status

    def cuModuleGetFunction(self, _function: Any, _module: Any, name: bytes) -> int:
        return 0 if name == KERNEL.encode() else 500

    def cuLaunchKernel(self, _function: Any, *arguments: Any) -> int:
        *numbers, stream, parameters, extra = arguments
        assert extra is None
        assert ctypes.cast(parameters[0], ctypes.POINTER(ctypes.c_uint64))[0] == 0
        self.launches.append((*numbers, stream.value))
        return self.status


def test_every_sm_gets_the_code_on_the_given_stream() -> None:
    """Two blocks of four warps for each SM."""
    driver = FakeDriver()
    flush = InstructionCacheFlush(132, driver)
    flush.launch(0xABC)
    flush.launch(0xABC)
    assert driver.launches == [(264, 1, 1, 128, 1, 1, 0, 0xABC)] * 2


def test_a_driver_that_refuses_names_the_option() -> None:
    """One line with what failed and what to leave out."""
    with pytest.raises(ProfilerError, match=r"cuModuleLoadData .* 218.*--icache_flush"):
        InstructionCacheFlush(132, FakeDriver(status=218))
