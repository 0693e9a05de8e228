"""The HIP runtime through ctypes, with CudaDriver's methods. It has never run on AMD hardware."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cached_property
from typing import Any

from genkern.errors import LaunchError
from genkern.runtime.launch.cuda_driver import address_of
from genkern.runtime.launch.launch_shape import Entries, LaunchShape
from genkern.runtime.launch.parameters import TensorMap

_LIBRARY = "libamdhip64.so"
# Constants of hip_runtime_api.h: hipStreamCaptureMode, hipStreamNonBlocking.
_RELAXED = 2
_NON_BLOCKING = 1


def library_path(files: Iterable[str]) -> str:
    """Return HIP's library among the files that a process has mapped, else its name for the system's search.

    PyTorch brings a HIP library of its own, whose file name varies. A second library of another release would not share
    its context.
    """
    return next((file for file in files if os.path.basename(file).startswith(_LIBRARY)), _LIBRARY)


def mapped_files() -> list[str]:
    """Return the files that this process has mapped into its memory; a file may occur several times."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            return [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.count("/")]
    except OSError:
        return []


class HipDriver:
    """Functions of libamdhip64, which PyTorch brings. All use the current device."""

    def __init__(self, path: str = "") -> None:
        """Raise LaunchError if there is no HIP runtime."""
        try:
            self.library: Any = ctypes.CDLL(path or library_path(mapped_files()))
        except OSError as error:
            raise LaunchError(f"no HIP runtime: {error}") from None
        self.library.hipGetErrorString.restype = c_char_p
        self._functions: dict[tuple[int, str], int] = {}
        self._loading = threading.Lock()

    def enter(self, device: int) -> None:
        """Make this thread launch on device number `device`."""
        self._require(self.library.hipSetDevice(c_int(device)), f"device {device}")

    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int:
        """Return the handle of a kernel on the current device, number `device`. Raises LaunchError.

        LDS needs no request in advance: the launch states its size.
        """
        with self._loading:
            if (device, sha256) not in self._functions:
                # Loading is allowed during the capture of a graph only if relaxed; see CudaDriver.function.
                with self.relaxed():
                    self._functions[device, sha256] = self._load(image, symbol)
            return self._functions[device, sha256]

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """See CudaDriver.relaxed."""
        mode = c_int(_RELAXED)
        self.library.hipThreadExchangeStreamCaptureMode(byref(mode))
        try:
            yield
        finally:
            self.library.hipThreadExchangeStreamCaptureMode(byref(mode))

    def memory(self, size_bytes: int) -> int:
        """See CudaDriver.memory."""
        address, stream, library = c_void_p(), c_void_p(), self.library
        what = f"{size_bytes} bytes of workspace"
        with self.relaxed():
            self._require(library.hipMalloc(byref(address), c_size_t(size_bytes)), what)
            self._require(library.hipStreamCreateWithFlags(byref(stream), c_uint(_NON_BLOCKING)), what)
            try:
                self._require(library.hipMemsetAsync(address, c_int(0), c_size_t(size_bytes), stream), what)
                self._require(library.hipStreamSynchronize(stream), what)
            finally:
                library.hipStreamDestroy(stream)
        return int(address.value or 0)

    def release(self, address: int) -> None:
        """See CudaDriver.release."""
        with self.relaxed():
            self._require(self.library.hipFree(c_void_p(address)), "freeing workspace")

    def stream_number(self, stream: int) -> int | None:
        """Return None: HIP has no such numbers."""
        return None

    def current(self) -> int:
        """Return what `entries.current` writes in this thread: the current device."""
        device = c_int()
        self._require(self.library.hipGetDevice(byref(device)), "the current device")
        return device.value

    def _load(self, image: bytes, symbol: str) -> int:
        module, function = c_void_p(), c_void_p()
        self._require(self.library.hipModuleLoadData(byref(module), c_char_p(image)), f"loading {symbol}")
        found = self.library.hipModuleGetFunction(byref(function), module, c_char_p(symbol.encode()))
        self._require(found, f"finding {symbol}")
        return int(function.value or 0)

    def launch(self, shape: LaunchShape, pointers: Any) -> Callable[[int], int]:
        """See CudaDriver.launch. HIP has neither clusters nor dependent launches."""
        sizes = [c_uint(size) for size in (*shape.grid, shape.threads, 1, 1, shape.shared_bytes)]
        function, launch_kernel = c_void_p(shape.function), self.library.hipModuleLaunchKernel

        def launch(stream: int) -> int:
            status: int = launch_kernel(function, *sizes, c_void_p(stream), pointers, None)
            return status

        return launch

    @cached_property
    def entries(self) -> Entries:
        """Addresses of the functions that the C extension calls."""
        library = self.library
        return Entries(
            launch=address_of(library.hipModuleLaunchKernel),
            encode=0,
            plain=True,
            current=address_of(library.hipGetDevice),
            capture=address_of(library.hipStreamGetCaptureInfo),
            exchange=address_of(library.hipThreadExchangeStreamCaptureMode),
        )

    def clears_bit(self, form: TensorMap) -> bool:
        """Return False: AMD GPUs have no tensor maps."""
        return False

    def tensor_map(self, form: TensorMap, address: int) -> bytes:
        """Raise LaunchError: AMD GPUs have no tensor maps, and no family that runs on them uses one."""
        raise LaunchError(f"{form.tensor} needs TMA, which this device does not have")

    def capture(self, stream: int) -> int:
        """Return the number of the graph capture that the stream takes part in; 0 if there is none."""
        status, number = c_int(), c_uint64()
        said = self.library.hipStreamGetCaptureInfo(c_void_p(stream), byref(status), byref(number))
        self._require(said, "whether a graph is captured")
        return number.value if status.value else 0

    def error_text(self, status: int) -> str:
        """Return HIP's description of a status, with its number."""
        text = self.library.hipGetErrorString(c_int(status)) or b"unknown error"
        return f"{text.decode(errors='replace')} (HIP error {status})"

    def _require(self, status: int, what: str) -> None:
        if status:
            raise LaunchError(f"{what}: {self.error_text(status)}")
