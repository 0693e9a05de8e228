"""The fence: an empty kernel of a known name before and after a library call, whose own kernels have unknown names.

In a trace, the kernels between two fences are the call. A profiler's marker would not do: it carries the host's time,
not the device's, and legacy rocprof has none.
"""

from __future__ import annotations

from typing import Any

import triton

from genkern.profiling.loaded_gemm import Call


@triton.jit  # type: ignore[untyped-decorator]
def genkern_fence() -> None:
    pass


def fenced(call: Call, fence: Any = genkern_fence) -> Call:
    """Return the call between two fences. They are compiled now, and launched only with the call."""
    fence.warmup(grid=(1,), num_warps=1)
    launch = fence[(1,)]

    def fenced_call(copy: int) -> None:
        launch(num_warps=1)
        call(copy)
        launch(num_warps=1)

    return fenced_call
