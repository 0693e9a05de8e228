"""Tests of profiling/rocm/fence.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.profiling.fence import fenced, genkern_fence
from genkern.profiling.launch_job import FENCE
from genkern.profiling.rocm.dispatch_match import LogEntry
from genkern.profiling.rocm.kernel_trace import KernelTrace
from genkern.profiling.rocm.vendor_trace import vendor_times
from genkern.timing.libraries import VENDOR


class _Kernel:
    """As much of a JIT function as a fence needs; it keeps the order of events."""

    def __init__(self, events: list[object]) -> None:
        self._events = events

    def warmup(self, *, grid: tuple[int, ...], num_warps: int) -> None:
        self._events.append(("compiled", grid, num_warps))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *, num_warps: self._events.append(("launched", grid, num_warps))


def test_a_fenced_call_is_launched_between_two_fences() -> None:
    """The call gets its copy; nothing is launched before it is asked for, and compiling is over by then."""
    events: list[object] = []
    call = fenced(events.append, _Kernel(events))
    assert events == [("compiled", (1,), 1)]
    call(7)
    call(8)
    fence = ("launched", (1,), 1)
    assert events[1:] == [fence, 7, fence, fence, 8, fence]


class _Driver:
    """A driver whose device launches nothing, and keeps what it was to launch."""

    def __init__(self, events: list[object]) -> None:
        self.utils = SimpleNamespace(
            # No module: Triton 3.9 would unload it at exit, by the driver that is active then.
            load_binary=lambda name, *_: (None, name, 8, 0, 1024),
            get_device_properties=lambda _device: {"max_shared_mem": 65536},
        )
        self.launcher_cls = lambda _source, _metadata: lambda *launch: events.append(launch[:3] + launch[4:5])

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("hip", "gfx942", 64)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0


def test_triton_launches_the_fence_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own JIT compiles it without a launch, then launches one program of it on each side of the call."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    events: list[object] = []
    # Not set_active, whose counterpart looks for a real driver.
    monkeypatch.setattr(driver, "_active", _Driver(events))
    call = fenced(events.append, triton.jit(genkern_fence.fn))
    assert events == []
    call(7)
    fence = (1, 1, 1, FENCE)
    assert events == [fence, 7, fence]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_the_fence_compiles_to_an_empty_kernel_of_its_name(arch: str) -> None:
    """A trace shows it by the name that the reader looks for, and it does nothing that takes time."""
    target: Any = GPUTarget(*triton_target(gpu_for_arch(arch)))
    kernel = triton.compile(ASTSource(genkern_fence, signature={}), target=target, options={"num_warps": 1})
    assert kernel.metadata.name == FENCE
    code = kernel.asm["amdgcn"].partition("s_endpgm")[0].partition(f"{FENCE}:")[2]
    instructions = re.findall(r"^\s+([a-z]\w+)", code, re.MULTILINE)
    # CDNA loads kernel arguments ahead by scalar instructions; nothing else runs.
    assert len(instructions) < 8
    assert all(name.startswith("s_") for name in instructions)


@pytest.mark.gpu
def test_real_kernels_of_the_library_lie_between_real_fences() -> None:
    """By CUPTI's records: every call, of two kernels, is seen whole, with a time, and setting up is not part of it."""
    import torch

    from genkern.profiling.cuda.cupti import KernelTrace as Cupti

    if torch.version.hip:
        pytest.skip("CUPTI is NVIDIA's")
    torch.cuda.init()
    trace = Cupti()
    try:
        # In fp32: where cuBLAS splits K in bf16, its reduction starts some 0.1 us before the product has ended
        # (programmatic dependent launch), which no AMD GPU does, and which vendor_times refuses.
        a = torch.randn(512, 512, device="cuda")
        b = torch.randn(512, 512, device="cuda")
        c = torch.empty(512, 512, device="cuda")
        torch.mm(a, b, out=c).relu_()
        call = fenced(lambda copy: torch.mm(a, b, out=c).relu_())
        for _ in range(5):
            b.normal_()
            for copy in range(2):
                call(copy)
        torch.cuda.synchronize()
        entries = [LogEntry(VENDOR, (FENCE, FENCE), 2, finished=True)] * 5
        times = vendor_times(entries, KernelTrace(tuple(trace.collect())))
    finally:
        trace.close()
    assert times.message.startswith("10 of 10 calls complete"), times.message
    assert all(time_us is not None and 1 < time_us < 1000 for time_us in times.turns_us)
    assert "normal" not in times.message
    assert " + " in times.message
