"""native_call: an eager call from tensors to output that the C extension makes without Python code in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from genkern.errors import GenkernError, LaunchError
from genkern.runtime.launch import launcher
from genkern.runtime.launch.prepared_call import LiveGpu


@dataclass(frozen=True)
class Form:
    """The number of tensors that a call takes (`given`), and shape, strides and type of its result."""

    given: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class NativeCall:
    """`call` is a function of a call's tensors. After `stop()` it passes every call on to the Python function."""

    call: Callable[..., Any]
    stop: Callable[[], None]


class Prepared(Protocol):
    """A prepared call (PreparedCall, AlgorithmCall); `body` is what the C extension launches."""

    @property
    def alignment(self) -> int: ...
    @property
    def body(self) -> Any: ...
    @property
    def memory_bytes(self) -> tuple[int, int]: ...
    def failure(self, status: int) -> GenkernError: ...


def native_call(
    gpu: LiveGpu,
    prepared: Prepared,
    traits: Form,
    otherwise: Callable[..., Any],
    failed: Callable[[GenkernError], None],
) -> NativeCall:
    """Return a call that the C extension makes, for tensors with the layouts for which `prepared` was prepared.

    The extension passes calls on to `otherwise` if operands are misaligned, if the thread's current device is another
    one, or if the call needs a workspace that cannot be kept (it is captured into a graph, its stream may end, or the
    limit per device is reached).

    After a failed launch, which is reported to `failed`, or after `stop`, it passes all calls on. A caller whose own
    launch failed must call `stop`, too: further launches could write wrong results unnoticed.

    Returns `otherwise` itself if the C extension is not available.
    """
    native = launcher._native
    if native is None or gpu.empty_here is None or prepared.body is None:
        return NativeCall(otherwise, lambda: None)
    with gpu.made_current():
        current = gpu.driver.current()
    entries, needed = gpu.driver.entries, prepared.memory_bytes

    def room(stream: int) -> tuple[int, int]:
        found = gpu.workspaces.take(stream, *needed)
        if found is None or not gpu.workspaces.lasts(stream):
            # The extension caches what this function returns; on an exception it passes the call on to `otherwise`.
            raise LaunchError("this workspace cannot be kept")
        return found

    def launch_failed(status: int) -> None:
        gpu.workspaces.drop(gpu.stream())
        failed(prepared.failure(status))

    made = native.Call(
        prepared.body,
        *(entries.current, current, entries.capture if any(needed) else 0, entries.plain),
        *(prepared.alignment, traits.given, gpu.stream_of, gpu.index, gpu.empty_here),
        *((traits.shape, traits.strides, traits.dtype), room, otherwise, launch_failed),
    )
    return NativeCall(made.call, made.stop)
