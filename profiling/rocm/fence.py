"""The fence: an empty kernel of a known name before and after a call whose own kernels have names that nobody knows.

In a trace, what lies between the two is the call. A marker of the profiler's would not do: it has the host's time, not
the device's, and legacy rocprof has none.
"""

from __future__ import annotations

from typing import Any

import triton

from genkern.profiling.loaded_gemm import Call


@triton.jit  # type: ignore[untyped-decorator]
def genkern_fence() -> None:
    pass


def fenced(call: Call, fence: Any = genkern_fence) -> Call:
    """The call between two fences, which are compiled now and launched only with it."""
    fence.warmup(grid=(1,), num_warps=1)
    launch = fence[(1,)]

    def fenced_call(copy: int) -> None:
        launch(num_warps=1)
        call(copy)
        launch(num_warps=1)

    return fenced_call
