"""native_call: an eager call whose server is known, from its tensors to the output, made by the C extension alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from genkern.errors import GenkernError, LaunchError
from genkern.runtime.launch import launcher
from genkern.runtime.launch.prepared import LiveGpu


@dataclass(frozen=True)
class Form:
    """What a call is given, so many tensors, and what it returns."""

    given: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class NativeCall:
    """The `call` as a function of its tensors; after `stop` all go where those go that it does not make itself."""

    call: Callable[..., Any]
    stop: Callable[[], None]


class Prepared(Protocol):
    """Launches that are ready (PreparedCall, AlgorithmCall): `body` is what the C extension makes of them."""

    @property
    def alignment(self) -> int: ...
    @property
    def body(self) -> Any: ...
    @property
    def memory_bytes(self) -> tuple[int, int]: ...
    def failure(self, status: int) -> GenkernError: ...


def native_call(
    gpu: LiveGpu, prepared: Prepared, form: Form, otherwise: Callable[..., Any], failed: Callable[[GenkernError], None]
) -> NativeCall:
    """The call of tensors that lie as they did when it was prepared; `otherwise` where the C extension is not there.

    `otherwise` also makes calls whose operands are off their alignment, on another device than the thread's, or whose
    workspace is not kept: in graphs, on streams that may end, beyond what is kept of a device. And all after one that
    failed here, of which `failed` is told, or after `stop`: whoever sees one of its own fail stops this way too, since
    the next may write what nobody checks.
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
            # The extension keeps what it is given here, and hands the call on where there is nothing to keep.
            raise LaunchError("a workspace for this call alone")
        return found

    def launch_failed(status: int) -> None:
        gpu.workspaces.drop(gpu.stream())
        failed(prepared.failure(status))

    made = native.Call(
        prepared.body,
        *(entries.current, current, entries.capture if any(needed) else 0, entries.plain),
        *(prepared.alignment, form.given, gpu.stream_of, gpu.index, gpu.empty_here),
        *((form.shape, form.strides, form.dtype), room, otherwise, launch_failed),
    )
    return NativeCall(made.call, made.stop)
