"""Kernel records of NVIDIA's CUPTI activity API, through ctypes: start and end of each kernel by the device's clock."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from genkern.errors import ProfilerError
from genkern.gemm.records import Dispatch

_KIND_CONCURRENT_KERNEL = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, cupti_activity.h
_FLUSH_FORCED = 1
_MAX_LIMIT_REACHED = 12  # CUPTI_ERROR_MAX_LIMIT_REACHED: no more records in the buffer
_BUFFER_BYTES = 4 << 20
_ALIGNMENT = 8

# The leading fields of CUpti_ActivityKernel4 .. Kernel10, which later versions only append to: kind, cache
# configuration, registers, two partitioned-cache fields, start, end, completed, device, context, stream, grid,
# block, shared memory, local memory, correlation, grid id, name.
_KERNEL = struct.Struct("=I B B H I I Q Q Q I I I 3i 3i i i I I I q Q")
_START, _END, _GRID_X, _BLOCK_X, _NAME = 6, 7, 12, 15, 24


class KernelTrace:
    """Records every kernel that this process runs from now on.

    Raises ProfilerError if CUPTI is missing or refuses, for example because another profiler uses the device.
    """

    def __init__(self) -> None:
        self._cupti = _load_cupti()
        self._buffers: dict[int, Any] = {}
        self._kernels: list[Dispatch] = []
        # CUPTI calls these from C as long as the process lives, so they must not be garbage collected.
        self._on_request = _REQUEST(self._request)
        self._on_complete = _COMPLETE(self._complete)
        self._check("cuptiActivityRegisterCallbacks", self._on_request, self._on_complete)
        self._check("cuptiActivityEnable", _KIND_CONCURRENT_KERNEL)

    def clear(self) -> None:
        """Discard the records so far."""
        self.collect()

    def collect(self) -> list[Dispatch]:
        """Return the kernels since the last collect or clear, in order of start. The device must be synchronized."""
        self._check("cuptiActivityFlushAll", ctypes.c_uint32(_FLUSH_FORCED))
        kernels, self._kernels = sorted(self._kernels, key=lambda kernel: kernel.start_ns), []
        return kernels

    def close(self) -> None:
        """Stop recording."""
        self._check("cuptiActivityDisable", _KIND_CONCURRENT_KERNEL)

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._cupti, function)(*arguments)
        if status:
            raise ProfilerError(f"{function} failed with CUPTI status {status}; try --profiler cudagraph")

    def _request(self, buffer: Any, size: Any, max_records: Any) -> None:
        memory = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGNMENT)
        address = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
        self._buffers[address] = memory
        buffer[0], size[0], max_records[0] = address, _BUFFER_BYTES, 0

    def _complete(self, _context: Any, _stream: int, buffer: int, _size: int, valid_size: int) -> None:
        record = ctypes.c_void_p()
        while (
            valid_size
            and self._cupti.cuptiActivityGetNextRecord(
                ctypes.c_void_p(buffer), ctypes.c_size_t(valid_size), ctypes.byref(record)
            )
            != _MAX_LIMIT_REACHED
        ):
            if not record.value:
                break
            fields = _KERNEL.unpack(ctypes.string_at(record.value, _KERNEL.size))
            if fields[0] == _KIND_CONCURRENT_KERNEL:
                name = ctypes.string_at(fields[_NAME]).decode(errors="replace")
                self._kernels.append(Dispatch(name, fields[_START], fields[_END], fields[_GRID_X], fields[_BLOCK_X]))
        self._buffers.pop(buffer, None)


_REQUEST: Callable[[Any], Any] = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETE: Callable[[Any], Any] = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def _load_cupti() -> ctypes.CDLL:
    """Return the CUPTI library that PyTorch loaded into this process, or the one that the loader finds."""
    try:
        with open("/proc/self/maps") as maps:
            loaded = {line.split()[-1] for line in maps if "/libcupti.so" in line}
    except OSError:
        loaded = set()
    for name in (*sorted(loaded), "libcupti.so.13", "libcupti.so.12", "libcupti.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ProfilerError("libcupti was not found: install the nvidia-cuda-cupti package, or use --profiler cudagraph")
