"""The CUDA driver through ctypes: loads binaries, encodes tensor maps, and returns addresses of its functions.

ctypes needs no further package: a process that runs PyTorch has loaded libcuda.so.1 already.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p
from functools import cached_property
from typing import Any

from genkern.errors import LaunchError
from genkern.runtime.launch.launch_shape import Entries, LaunchShape
from genkern.runtime.launch.parameters import TENSOR_MAP_BYTES, TensorMap

# Constants of cuda.h: CUfunction_attribute, CUfunc_cache, CUlaunchAttributeID, CUclusterSchedulingPolicy,
# CUtensorMapL2promotion.
_MAX_DYNAMIC_SHARED_BYTES = 8
_PREFER_SHARED = 1
_CLUSTER_DIMENSION, _CLUSTER_SCHEDULING, _STARTS_EARLY = 4, 5, 6
_SPREAD = 1
_L2_128B = 2
# CUstreamCaptureMode, CUstream_flags.
_RELAXED = 2
_NON_BLOCKING = 1
# A kernel must request dynamic shared memory above this size.
_SHARED_WITHOUT_ASKING = 48 * 1024
# Drivers up to 13.1 set a bit that tensor maps of small tensors must not have. CUTLASS
# (cute/atom/copy_traits_sm90_tma.hpp) and Triton (backends/nvidia/driver.c) clear it in the maps of tensors below 128
# KiB.
_LAST_WITH_BIT, _SMALL_BYTES, _BIT = 13010, 128 * 1024, 1 << 21


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute. Its value is a union of 64 bytes, of which up to three numbers are used here."""

    _fields_ = [("id", c_int), ("pad", c_int), ("value", c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    ]


def launch_attributes(cluster: int, starts_early: bool) -> list[LaunchAttribute]:
    """Return the launch attributes for a cluster size and an early start, as Triton sets them."""
    found = []
    if starts_early:
        found.append(LaunchAttribute(_STARTS_EARLY, 0, (c_uint * 16)(1)))
    if cluster > 1:
        found.append(LaunchAttribute(_CLUSTER_DIMENSION, 0, (c_uint * 16)(cluster, 1, 1)))
        found.append(LaunchAttribute(_CLUSTER_SCHEDULING, 0, (c_uint * 16)(_SPREAD)))
    return found


def address_of(function: Any) -> int:
    """Return the address of a library's function."""
    return int(ctypes.cast(function, c_void_p).value or 0)


class CudaDriver:
    """Functions of libcuda. All use the current context, which is the context of PyTorch's current device."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        """Raise LaunchError if there is no CUDA driver."""
        try:
            self.library: Any = ctypes.CDLL(path)
        except OSError as error:
            raise LaunchError(f"no CUDA driver: {error}") from None
        # Modules stay loaded for the life of the process, since graphs may replay their kernels.
        self._functions: dict[tuple[int, str], int] = {}
        self._loading = threading.Lock()

    def launch(self, shape: LaunchShape, pointers: Any) -> Callable[[int], int]:
        """Return a function that launches on a stream with the arguments at `pointers`, and returns the status."""
        found = launch_attributes(shape.cluster, shape.starts_early)
        attributes = (LaunchAttribute * max(len(found), 1))(*found)
        x, y, z = shape.grid
        # Clusters extend along the first dimension.
        grid, block = (c_uint * 3)(x * shape.cluster, y, z), (c_uint * 3)(shape.threads, 1, 1)
        config = LaunchConfig(grid, block, shape.shared_bytes, None, attributes, len(found))
        at, function, launch_kernel = byref(config), c_void_p(shape.function), self.library.cuLaunchKernelEx

        def launch(stream: int) -> int:
            config.stream = stream
            status: int = launch_kernel(at, function, pointers, None)
            return status

        return launch

    def enter(self, device: int) -> None:
        """If this thread has no context yet, make the primary context of device number `device` current.

        PyTorch's current device must be `device` already: PyTorch creates its context only when it is first used.
        """
        context, handle = c_void_p(), c_int()
        if not self.current():
            self._require(self.library.cuDeviceGet(byref(handle), c_int(device)), f"device {device}")
            self._require(self.library.cuDevicePrimaryCtxRetain(byref(context), handle), f"device {device}")
            self._require(self.library.cuCtxSetCurrent(context), f"device {device}")

    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int:
        """Return the handle of a kernel on the current device, number `device`. Raises LaunchError."""
        with self._loading:
            if (device, sha256) not in self._functions:
                # The first call of a kernel may be captured into a graph. Loading a module is forbidden then, unless
                # relaxed.
                with self.relaxed():
                    self._functions[device, sha256] = self._load(image, symbol, shared_bytes)
            return self._functions[device, sha256]

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """Within the block, this thread may make calls that are forbidden during the capture of a graph."""
        mode = c_int(_RELAXED)
        self.library.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            yield
        finally:
            self.library.cuThreadExchangeStreamCaptureMode(byref(mode))

    def memory(self, size_bytes: int) -> int:
        """Return the address of new zeroed memory on the current device, which stays until it is released.

        The memory belongs to no graph and to none of PyTorch's pools, whatever is being captured. Raises LaunchError.
        """
        address, stream, library = c_uint64(), c_void_p(), self.library
        what = f"{size_bytes} bytes of workspace"
        with self.relaxed():
            self._require(library.cuMemAlloc_v2(byref(address), c_size_t(size_bytes)), what)
            # A stream of its own waits for no other stream and takes part in no capture.
            self._require(library.cuStreamCreate(byref(stream), c_uint(_NON_BLOCKING)), what)
            try:
                self._require(library.cuMemsetD8Async(address, c_ubyte(0), c_size_t(size_bytes), stream), what)
                self._require(library.cuStreamSynchronize(stream), what)
            finally:
                library.cuStreamDestroy_v2(stream)
        return address.value

    def release(self, address: int) -> None:
        """Free memory that `memory` returned; waits until nothing uses it. Raises LaunchError."""
        with self.relaxed():
            self._require(self.library.cuMemFree_v2(c_uint64(address)), "freeing workspace")

    def stream_number(self, stream: int) -> int | None:
        """Return a number above 0 that identifies the stream for the life of the process; None before CUDA 12."""
        number = c_uint64()
        try:
            said = self.library.cuStreamGetId(c_void_p(stream), byref(number))
        except AttributeError:
            return None
        self._require(said, "the number of a stream")
        return number.value + 1

    def current(self) -> int:
        """Return what `entries.current` writes in this thread: the current context."""
        context = c_void_p()
        self._require(self.library.cuCtxGetCurrent(byref(context)), "the current context")
        return int(context.value or 0)

    def _load(self, image: bytes, symbol: str, shared_bytes: int) -> int:
        module, function = c_void_p(), c_void_p()
        self._require(self.library.cuModuleLoadData(byref(module), c_char_p(image)), f"loading {symbol}")
        self._require(
            self.library.cuModuleGetFunction(byref(function), module, c_char_p(symbol.encode())), f"finding {symbol}"
        )
        if shared_bytes > _SHARED_WITHOUT_ASKING:
            # As Triton does (backends/nvidia/driver.c): the kernel was measured with these settings.
            status = self.library.cuFuncSetCacheConfig(function, c_int(_PREFER_SHARED))
            self._require(status, f"a preference for shared memory of {symbol}")
            status = self.library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, c_int(shared_bytes))
            self._require(status, f"{shared_bytes} bytes of shared memory for {symbol}")
        return int(function.value or 0)

    @cached_property
    def entries(self) -> Entries:
        """Addresses of the functions that the C extension calls."""
        library = self.library
        return Entries(
            launch=address_of(library.cuLaunchKernelEx),
            encode=address_of(library.cuTensorMapEncodeTiled),
            plain=False,
            current=address_of(library.cuCtxGetCurrent),
            capture=address_of(library.cuStreamGetCaptureInfo_v2),
            exchange=address_of(library.cuThreadExchangeStreamCaptureMode),
        )

    def tensor_map(self, form: TensorMap, address: int) -> bytes:
        """Return the tensor map of the matrix at `address`. Raise LaunchError if the driver refuses it."""
        room = (ctypes.c_char * (TENSOR_MAP_BYTES + 63))()
        at = (ctypes.addressof(room) + 63) & ~63
        encoding, layout = form.encoding, form.layout
        pitch = layout.pitch * layout.element_bytes
        rows, columns = encoding.box
        status = self.library.cuTensorMapEncodeTiled(
            c_void_p(at),
            c_int(encoding.element_type),
            c_uint32(2),
            c_void_p(address),
            (c_uint64 * 2)(layout.columns, layout.rows),
            (c_uint64 * 1)(pitch),
            (c_uint32 * 2)(columns, rows),
            (c_uint32 * 2)(1, 1),
            c_int(0),
            c_int(encoding.swizzle),
            c_int(_L2_128B),
            c_int(0),
        )
        self._require(status, f"a tensor map of {layout} with {encoding}")
        if self.clears_bit(form):
            word = c_uint64.from_address(at + 8)
            word.value &= ~_BIT
        return ctypes.string_at(at, TENSOR_MAP_BYTES)

    def clears_bit(self, form: TensorMap) -> bool:
        """Return True if the driver sets the bit that small tensors must not have (see _LAST_WITH_BIT)."""
        layout = form.layout
        last = ((layout.rows - 1) * layout.pitch + layout.columns - 1) * layout.element_bytes
        return self.version <= _LAST_WITH_BIT and last + 1 < _SMALL_BYTES

    @cached_property
    def version(self) -> int:
        """The CUDA version of the driver: 13010 is 13.1."""
        found = c_int()
        self._require(self.library.cuDriverGetVersion(byref(found)), "the driver's version")
        return found.value

    def _require(self, status: int, what: str) -> None:
        if status:
            raise LaunchError(f"{what}: {self.error_text(status)}")

    def capture(self, stream: int) -> int:
        """Return the number of the graph capture that the stream takes part in; 0 if there is none."""
        status, number = c_int(), c_uint64()
        said = self.library.cuStreamGetCaptureInfo_v2(c_void_p(stream), byref(status), byref(number), None, None, None)
        self._require(said, "whether a graph is captured")
        return number.value if status.value else 0

    def error_text(self, status: int) -> str:
        """Return the driver's description of a status, with its number."""
        text = c_char_p()
        self.library.cuGetErrorString(c_int(status), byref(text))
        return f"{(text.value or b'unknown error').decode(errors='replace')} (CUDA error {status})"
