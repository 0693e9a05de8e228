"""Matmul: one operation of cuBLASLt with all that a call needs prepared: handle, descriptors and layouts.

Safe under CUDA graph capture once an algorithm has been called outside one: nothing is allocated or looked up by a
call, and the workspace is the caller's. Safe from several threads: what a call reads is never changed.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from genkern.runtime.backends import cublaslt_api as api
from genkern.runtime.backends.cublaslt_api import Algo, Api, HeuristicResult
from genkern.runtime.backends.cublaslt_operation import Operation

# What PyTorch gives the library on Hopper is half of it.
WORKSPACE_BYTES = 64 * 2**20
# Addresses that PyTorch's allocator gives are multiples of 512; the library asks for no more than so much.
MOST_ALIGNMENT = 256
# Descriptors are kept for so many combinations of the pointers in them; the eldest then go.
_DESCRIPTORS = 256


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the library: its opaque structure, the bytes of workspace it needs, and where it is from.

    `waves` is how often it fills the device, by the library's word. `source` is "heuristic", "enumerated" or "kept".
    """

    data: bytes
    workspace_bytes: int
    waves: float = 0.0
    source: str = "heuristic"

    @functools.cached_property
    def algo(self) -> Algo:
        return api.algo_of(self.data)


@dataclass(frozen=True)
class Pointers:
    """Addresses on the device, by genkern's names of operands; 0 for one that the operation does not have."""

    a: int
    b: int
    c: int
    bias: int = 0
    scale_a: int = 0
    scale_b: int = 0

    @property
    def alignments(self) -> tuple[int, int, int, int]:
        """Of the library's A, B, C and D: the largest power of two that divides each, up to MOST_ALIGNMENT."""
        return alignment(self.b), alignment(self.a), alignment(self.c), alignment(self.c)


def alignment(address: int) -> int:
    """The largest power of two that divides an address, up to MOST_ALIGNMENT."""
    return min(address & -address, MOST_ALIGNMENT) if address else MOST_ALIGNMENT


class _Handle:
    """cublasLtHandle_t of the device that is current; lives as long as the process."""

    def __init__(self, library: Api) -> None:
        self.value = library.created("")


_handles: dict[tuple[str, int], _Handle] = {}
_handles_lock = threading.Lock()


def handle(library: Api, device_index: int) -> c_void_p:
    """The library's handle for a device, which must be the current one when this is called first for it."""
    with _handles_lock:
        known = _handles.get((library.path, device_index))
        if known is None:
            known = _handles[library.path, device_index] = _Handle(library)
    return known.value


class Owned:
    """A descriptor of the library's that is destroyed with this object."""

    def __init__(self, library: Api, kind: str, *arguments: object) -> None:
        self._library, self._kind = library, kind
        self.value = library.created(kind, *arguments)

    def set(self, attribute: api.Attribute, value: int) -> None:
        self._library.set_attribute(self._kind, self.value, attribute, value)

    def __del__(self) -> None:
        if hasattr(self, "value"):
            self._library.status(f"{self._kind}Destroy", self.value)


class Matmul:
    """An operation on one device. Raises CublasLtError for what the library refuses outright."""

    def __init__(self, library: Api, operation: Operation, device_index: int) -> None:
        self.library = library
        self.operation = operation
        self.handle = handle(library, device_index)
        self._layouts = [
            Owned(library, "MatrixLayout", each.dtype, each.rows, each.columns, each.leading)
            for each in (operation.a, operation.b, operation.d)
        ]
        of_a, of_b, of_d = (layout.value for layout in self._layouts)
        self.layouts = of_a, of_b, of_d, of_d
        self._descriptors: dict[tuple[int, int, int], Owned] = {}
        # Read by the host at each call; with beta at zero, C is not read. A float's zero is an integer's too.
        kind = ctypes.c_int32 if operation.scale_type == api.R_32I else ctypes.c_float
        self._alpha, self._beta = kind(1), kind(0)
        self._alpha_at, self._beta_at = byref(self._alpha), byref(self._beta)

    def descriptor(self, pointers: Pointers) -> Owned:
        """The operation's descriptor with these addresses of bias and scales; one that is made stays as it is."""
        key = pointers.bias, pointers.scale_a, pointers.scale_b
        found = self._descriptors.get(key)
        if found is None:
            found = self._descriptor(pointers)
            while len(self._descriptors) >= _DESCRIPTORS:
                # Whoever still calls with it holds it.
                self._descriptors.pop(next(iter(self._descriptors)), None)
            self._descriptors[key] = found
        return found

    def launch(
        self, algorithm: Algorithm, pointers: Pointers, workspace: int, workspace_bytes: int, stream: int
    ) -> None:
        """Enqueue one call. `workspace` is an address of memory that nothing else uses meanwhile.

        Raises CublasLtError; then nothing was enqueued.
        """
        of_a, of_b, of_d, _ = self.layouts
        descriptor = self.descriptor(pointers)
        status = self.library.matmul(
            self.handle,
            descriptor.value,
            self._alpha_at,
            pointers.b,
            of_a,
            pointers.a,
            of_b,
            self._beta_at,
            pointers.c,
            of_d,
            pointers.c,
            of_d,
            byref(algorithm.algo),
            workspace,
            workspace_bytes,
            stream,
        )
        if status:
            api.require(status, "Matmul")

    def bind(
        self, algorithm: Algorithm, pointers: Pointers, workspace: int, workspace_bytes: int
    ) -> Callable[[int], None]:
        """`launch` for these addresses, with every argument made: a function of the stream."""
        of_a, of_b, of_d, _ = self.layouts
        descriptor, algo = self.descriptor(pointers), algorithm.algo
        d, size = c_void_p(pointers.c), c_size_t(workspace_bytes)
        arguments = (
            *(self.handle, descriptor.value, self._alpha_at, c_void_p(pointers.b), of_a, c_void_p(pointers.a), of_b),
            *(self._beta_at, d, of_d, d, of_d, byref(algo), c_void_p(workspace), size),
        )
        matmul = self.library.matmul

        # As defaults, so that the descriptor and the structure live as long as the function.
        def enqueue(stream: int, _keep: object = (self, descriptor, algo)) -> None:
            if status := matmul(*arguments, stream):
                api.require(status, "Matmul")

        return enqueue

    def native(self, algorithm: Algorithm, exchange: int, described: Callable[..., tuple[int, object]]) -> Any:
        """A call of the algorithm as the C extension takes it (genkern/runtime/launch/_native_call.h).

        `exchange` is the address of the driver's function for the capture mode; `described` gives the descriptor for
        the addresses of bias and scales, and what keeps it.
        """
        of_a, of_b, of_d, _ = self.layouts
        matmul = ctypes.cast(self.library.matmul, c_void_p).value
        numbers = (ctypes.addressof(each) for each in (self._alpha, self._beta))
        layouts = (each.value for each in (of_a, of_b, of_d))
        # `described` is to keep this object and the algorithm: the extension keeps it.
        parts = (self.handle.value, *numbers, *layouts, ctypes.addressof(algorithm.algo))
        return matmul, exchange, *parts, algorithm.workspace_bytes, described

    def check(self, algorithm: Algorithm, pointers: Pointers) -> Algorithm | None:
        """The algorithm with the workspace that it needs here; None where the library says that it does not run."""
        result = HeuristicResult()
        descriptor = self.descriptor(pointers)
        asked_of = self.handle, descriptor.value, *self.layouts
        status = self.library.status("MatmulAlgoCheck", *asked_of, byref(algorithm.algo), byref(result))
        if status != api.STATUS_SUCCESS:
            return None
        return Algorithm(algorithm.data, result.workspace_size, result.waves_count, algorithm.source)

    def _descriptor(self, pointers: Pointers) -> Owned:
        operation = self.operation
        made = Owned(self.library, "MatmulDesc", operation.compute, operation.scale_type)
        made.set(api.DESC_TRANSA, api.OP_T if operation.transposed_a else api.OP_N)
        made.set(api.DESC_TRANSB, api.OP_T if operation.transposed_b else api.OP_N)
        made.set(api.DESC_EPILOGUE, operation.epilogue)
        if operation.has_bias:
            # Also before the algorithms are asked for, which depend on its alignment.
            made.set(api.DESC_BIAS_POINTER, pointers.bias)
            made.set(api.DESC_BIAS_DATA_TYPE, operation.d.dtype)
        if operation.scales is not None:
            mode_a, mode_b = operation.scales
            made.set(api.DESC_A_SCALE_POINTER, pointers.scale_b)
            made.set(api.DESC_B_SCALE_POINTER, pointers.scale_a)
            made.set(api.DESC_FAST_ACCUM, int(operation.fast_accum))
            if (mode_a, mode_b) != (api.SCALE_SCALAR, api.SCALE_SCALAR):
                # Libraries from before 12.8 know no modes, and scalars only.
                made.set(api.DESC_A_SCALE_MODE, mode_a)
                made.set(api.DESC_B_SCALE_MODE, mode_b)
        return made
