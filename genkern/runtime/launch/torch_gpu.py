"""A GPU as PyTorch sees it: the identity by which winners are found, its current stream, memory and driver."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from genkern.errors import LaunchError
from genkern.gemm.gpus import capabilities_of
from genkern.runtime.bundles.table import Device
from genkern.runtime.launch.launcher import Driver
from genkern.runtime.launch.workspaces import Workspaces


class _Thread(threading.local):
    """Whether this thread has entered the GPU's context: PyTorch makes a context current only when it needs it."""

    entered = False


class TorchGpu:
    """GPU number `index` in PyTorch's order. The device is not used before it is needed."""

    def __init__(self, index: int) -> None:
        import torch

        self.index = index
        self._torch = torch
        self.workspaces = Workspaces(self._memory, self._release, self._stream_number)
        self._thread = _Thread()

    @cached_property
    def identity(self) -> Device:
        """The device as results files name it; compute units are counted as rocminfo counts them."""
        said = self._torch.cuda.get_device_properties(self.index)
        if not self._torch.version.hip:
            return Device(f"sm_{said.major}{said.minor}", said.name, said.multi_processor_count)
        arch = said.gcnArchName.partition(":")[0]
        # HIP counts work-group processors, unless its environment variable GPU_ENABLE_WGP_MODE is 0.
        in_pairs = os.environ.get("GPU_ENABLE_WGP_MODE", "1").lower() not in ("0", "false")
        per_processor = capabilities_of(arch).units_per_multiprocessor if in_pairs else 1
        return Device(arch, said.name, said.multi_processor_count * per_processor)

    @cached_property
    def driver(self) -> Driver:
        """The GPU's driver. Raises LaunchError if it is missing."""
        if self._torch.version.hip:
            from genkern.runtime.launch.hip_driver import HipDriver

            return HipDriver()
        from genkern.runtime.launch.cuda_driver import CudaDriver

        return CudaDriver()

    def stream(self) -> int:
        """Return the handle of the current stream."""
        return self.stream_of(self.index)

    @cached_property
    def stream_of(self) -> Callable[[int], int]:
        """A function that returns the handle of the current stream of the GPU with a given index."""
        of: Callable[[int], int] = self._torch._C._cuda_getCurrentRawStream
        return of

    def is_current(self) -> bool:
        """Return True if this thread launches on this GPU and has entered its context."""
        return self._thread.entered and bool(self._torch._C._cuda_getDevice() == self.index)

    @contextlib.contextmanager
    def made_current(self) -> Iterator[None]:
        """Within the block, this thread launches on this GPU."""
        with self._torch.cuda.device(self.index):
            self.driver.enter(self.index)
            self._thread.entered = True
            yield

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        """Return a new tensor with this shape, strides (in elements) and type."""
        if self.empty_here is not None and self.is_current():
            return self.empty_here(shape, strides, dtype)
        return self._torch.empty_strided(shape, strides, dtype=dtype, device=self._device)

    def temporary(self, size_bytes: int) -> Any:
        """Return a tensor of bytes, for use on the current stream."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self._device)

    @cached_property
    def empty_here(self) -> Callable[..., Any] | None:
        """A function like `empty` for the current GPU; None if PyTorch lacks it.

        It is the allocation of Inductor's generated code and takes a third of the host time of torch.empty.
        """
        found: Callable[..., Any] | None = getattr(self._torch._C._dynamo.guards, "_empty_strided_cuda", None)
        return found

    @cached_property
    def _device(self) -> Any:
        return self._torch.device("cuda", self.index)

    def _release(self, address: int) -> None:
        with self.made_current():
            self.driver.release(address)

    def _stream_number(self, stream: int) -> int | None:
        """Return the number of the current stream: 0 for the default stream and PyTorch's pools, which never end."""
        current = self._torch.cuda.current_stream(self.index)
        # For an external stream, PyTorch's stream_id is the handle.
        if not stream or (current.cuda_stream == stream != current.stream_id):
            return 0
        return self.driver.stream_number(stream)

    def _memory(self, size_bytes: int) -> int:
        try:
            return self.driver.memory(size_bytes)
        except LaunchError:
            # PyTorch's allocator may hold free memory, which must not be released during a capture.
            if self._torch.cuda.is_current_stream_capturing():
                raise
            self._torch.cuda.empty_cache()
            return self.driver.memory(size_bytes)
