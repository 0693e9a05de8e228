"""Evict kernels from the instruction caches of an NVIDIA GPU (--icache_flush).

Before each timed call, a kernel of 512 KiB of straight-line code runs on every SM. That is more than the instruction
caches of an SM hold (128 KiB on Hopper), so the timed call fetches its code from L2 again. Code is not evicted from L2,
except for what 512 KiB of other code displaces there, and nothing is flushed during screening.
"""

from __future__ import annotations

import ctypes
from typing import Any

from genkern.errors import ProfilerError

KERNEL = "genkern_evict_instructions"
# Each multiply-add becomes two instructions (a constant, and the multiply-add) of 16 bytes on Volta and later.
MULTIPLY_ADDS = 16 * 1024
_BLOCKS_PER_SM = 2
_THREADS = 128  # one warp on each of the four schedulers, which have their own caches


def evicting_ptx(multiply_adds: int = MULTIPLY_ADDS) -> str:
    """Return the PTX (sm_70 and later) of a kernel with this number of distinct multiply-adds.

    No compiler can fold them.

    The kernel's argument is an address to which it writes only a result that does not occur.
    """
    # Two dependency chains, so that instruction fetch limits the speed.
    body = "\n".join(
        f"fma.rn.f32 %f{i % 2}, %f{i % 2}, 0f3F{0x7F0000 - i:06X}, 0f3E{i:06X};" for i in range(multiply_adds)
    )
    return f"""\
.version 6.5
.target sm_70
.address_size 64
.visible .entry {KERNEL}(.param .u64 address)
{{
.reg .f32 %f<3>;
.reg .u32 %r<2>;
.reg .u64 %rd<3>;
.reg .pred %p<2>;
mov.u32 %r1, %tid.x;
cvt.rn.f32.u32 %f0, %r1;
cvt.rn.f32.u32 %f1, %r1;
{body}
add.f32 %f2, %f0, %f1;
setp.ge.f32 %p1, %f2, 0f00000000;
@%p1 bra done;
ld.param.u64 %rd1, [address];
cvta.to.global.u64 %rd2, %rd1;
st.global.f32 [%rd2], %f2;
done:
ret;
}}
"""


class InstructionCacheFlush:
    """Launches the evicting kernel in the current CUDA context. `units`: number of SMs.

    Raises ProfilerError if the driver refuses the kernel.
    """

    def __init__(self, units: int, driver: Any = None) -> None:
        self._cuda = driver if driver is not None else ctypes.CDLL("libcuda.so.1")
        self._grid = units * _BLOCKS_PER_SM
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cuModuleLoadData", ctypes.byref(module), evicting_ptx().encode())
        self._check("cuModuleGetFunction", ctypes.byref(self._function), module, KERNEL.encode())
        self._address = ctypes.c_uint64(0)
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self._address))

    def launch(self, stream: int) -> None:
        """Enqueue the kernel on `stream`, a CUstream handle."""
        grid, block, shared = (self._grid, 1, 1), (_THREADS, 1, 1), 0
        self._check(
            "cuLaunchKernel", self._function, *grid, *block, shared, ctypes.c_void_p(stream), self._arguments, None
        )

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._cuda, function)(*arguments)
        if status:
            raise ProfilerError(f"{function} failed with CUDA status {status}; run without --icache_flush")
