"""Tests of profiling/cuda/cupti.py with a library that hands out records as CUPTI lays them out."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from genkern.errors import ProfilerError
from genkern.gemm.records import Dispatch
from genkern.profiling.cuda import cupti
from genkern.profiling.cuda.cupti import KernelTrace

# Offsets of CUpti_ActivityKernel9 (cupti_activity.h, 64 bit), written down by field and not by the parser's format.
START, END, GRID_X, BLOCK_X, NAME, SIZE = 16, 24, 52, 64, 104, 168


class FakeCupti:
    """Completes one buffer for every flush, holding the kernels that ran; `status` is what each function returns."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.pending: list[tuple[bytes, int, int]] = []
        self.enabled: list[int] = []
        self._names: list[Any] = []
        self._records: list[Any] = []

    def cuptiActivityRegisterCallbacks(self, on_request: Any, on_complete: Any) -> int:
        self._on_request, self._on_complete = on_request, on_complete
        return self.status

    def cuptiActivityEnable(self, kind: int) -> int:
        self.enabled.append(kind)
        return self.status

    def cuptiActivityDisable(self, kind: int) -> int:
        self.enabled.remove(kind)
        return self.status

    def cuptiActivityFlushAll(self, flag: Any) -> int:
        assert flag.value == 1
        if self.pending:
            address, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
            self._on_request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
            assert address.value is not None
            assert address.value % 8 == 0
            assert (size.value, most.value) == (4 << 20, 0)
            self._records = [self._record(*kernel) for kernel in self.pending]
            self._records.append(ctypes.create_string_buffer(struct.pack("=I", 2), SIZE))  # a memory copy
            self._next = 0
            self.pending = []
            self._on_complete(None, 0, address, size, SIZE * len(self._records))
        return self.status

    def cuptiActivityGetNextRecord(self, _buffer: Any, _valid: Any, record: Any) -> int:
        if self._next == len(self._records):
            return 12
        ctypes.cast(record, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(self._records[self._next])
        self._next += 1
        return 0

    def _record(self, name: bytes, start: int, end: int) -> Any:
        text = ctypes.create_string_buffer(name)
        self._names.append(text)
        record = ctypes.create_string_buffer(SIZE)
        struct.pack_into("=I", record, 0, 10)
        struct.pack_into("=QQ", record, START, start, end)
        struct.pack_into("=i", record, GRID_X, 132)
        struct.pack_into("=i", record, BLOCK_X, 256)
        struct.pack_into("=Q", record, NAME, ctypes.addressof(text))
        return record


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    library = FakeCupti()
    monkeypatch.setattr(cupti, "_load_cupti", lambda: library)
    return library


def test_kernels_come_with_name_times_and_grid(library: FakeCupti) -> None:
    """What ran since the last time, in the order of their starts; other kinds of activity are passed over."""
    trace = KernelTrace()
    library.pending = [(b"reduce_splits", 5_000, 5_500), (b"matmul_tiled", 1_000, 4_000)]
    assert trace.collect() == [
        Dispatch("matmul_tiled", 1_000, 4_000, 132, 256),
        Dispatch("reduce_splits", 5_000, 5_500, 132, 256),
    ]
    assert trace.collect() == []


def test_what_ran_before_a_clear_is_forgotten(library: FakeCupti) -> None:
    """A warm-up is in no sample."""
    trace = KernelTrace()
    library.pending = [(b"warm_up", 1, 2)]
    trace.clear()
    library.pending = [(b"timed", 10, 30)]
    assert [kernel.duration_ns for kernel in trace.collect()] == [20]
    trace.close()
    assert library.enabled == []


def test_a_refusal_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI in use by another profiler, or no CUPTI: one line that says what to use instead."""
    monkeypatch.setattr(cupti, "_load_cupti", lambda: FakeCupti(status=39))
    with pytest.raises(ProfilerError, match=r"39.*--profiler cudagraph"):
        KernelTrace()
    monkeypatch.undo()

    def missing(_name: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(ProfilerError, match=r"libcupti .*--profiler cudagraph"):
        KernelTrace()
