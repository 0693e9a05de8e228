"""Matmul: one operation of cuBLASLt or hipBLASLt with everything that a call needs: handle, descriptors and layouts.

A call can be captured into a graph after its algorithm was called once outside of a capture. A call allocates no device
memory: the workspace is the caller's. Descriptors on the host are cached by pointer and never changed, so several
threads can use one Matmul.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from genkern.runtime.backends import lt_api as api
from genkern.runtime.backends.lt_api import Api
from genkern.runtime.backends.lt_operation import Operation

# Twice the workspace that PyTorch gives the library on Hopper.
WORKSPACE_BYTES = 64 * 2**20
# PyTorch's allocator returns multiples of 512; the library's algorithms require at most this alignment.
MOST_ALIGNMENT = 256
# Cached descriptors, one per combination of the pointers in them; the oldest are dropped first.
_DESCRIPTORS = 256


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the library.

    data: its opaque structure.
    workspace_bytes: the workspace that it needs.
    waves: number of waves, as the library states it; 0 if unknown.
    source: "heuristic", "enumerated" or "kept" (from results).
    """

    data: bytes
    workspace_bytes: int
    waves: float = 0.0
    source: str = "heuristic"

    @functools.cached_property
    def algo(self) -> Any:
        return api.algo_of(self.data)


@dataclass(frozen=True)
class Pointers:
    """Device addresses by genkern's names of the operands; 0 for an operand that the operation does not have."""

    a: int
    b: int
    c: int
    bias: int = 0
    scale_a: int = 0
    scale_b: int = 0

    @property
    def alignments(self) -> tuple[int, int, int, int]:
        """Alignments of the library's A, B, C and D."""
        return alignment(self.b), alignment(self.a), alignment(self.c), alignment(self.c)


def alignment(address: int) -> int:
    """Return the largest power of two that divides an address, up to MOST_ALIGNMENT."""
    return min(address & -address, MOST_ALIGNMENT) if address else MOST_ALIGNMENT


class _Handle:
    """The library's handle for the current device; it lives as long as the process."""

    def __init__(self, library: Api) -> None:
        self.value = library.created("")


_handles: dict[tuple[str, int], _Handle] = {}
_handles_lock = threading.Lock()


def handle(library: Api, device_index: int) -> c_void_p:
    """Return the library's handle for a device, which must be current at the first call for it."""
    with _handles_lock:
        known = _handles.get((library.path, device_index))
        if known is None:
            known = _handles[library.path, device_index] = _Handle(library)
    return known.value


class Owned:
    """A descriptor of the library that is destroyed with this object."""

    def __init__(self, library: Api, kind: str, *arguments: object) -> None:
        self._library, self._kind = library, kind
        self.value = library.created(kind, *arguments)

    def set(self, attribute: api.Attribute, value: int) -> None:
        self._library.set_attribute(self._kind, self.value, attribute, value)

    def __del__(self) -> None:
        if hasattr(self, "value"):
            self._library.status(f"{self._kind}Destroy", self.value)


class Matmul:
    """An operation on one device. Raises LtError if the library refuses it."""

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
        # The host reads alpha and beta at each call. With a beta of zero, C is not read. The bytes of zero are the same
        # for int32 and float.
        kind = ctypes.c_int32 if operation.scale_type == api.R_32I else ctypes.c_float
        self._alpha, self._beta = kind(1), kind(0)
        self._alpha_at, self._beta_at = byref(self._alpha), byref(self._beta)

    def descriptor(self, pointers: Pointers) -> Owned:
        """Return the operation's descriptor with these addresses of bias and scales; it is never changed later."""
        key = pointers.bias, pointers.scale_a, pointers.scale_b
        found = self._descriptors.get(key)
        if found is None:
            found = self._descriptor(pointers)
            while len(self._descriptors) >= _DESCRIPTORS:
                # A caller that still uses it holds a reference.
                self._descriptors.pop(next(iter(self._descriptors)), None)
            self._descriptors[key] = found
        return found

    def launch(
        self, algorithm: Algorithm, pointers: Pointers, workspace: int, workspace_bytes: int, stream: int
    ) -> None:
        """Enqueue one call. Until it has run, nothing else may use the memory at `workspace`.

        Raises LtError; then nothing was enqueued.
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
            self.library.require(status, "Matmul")

    def bind(
        self, algorithm: Algorithm, pointers: Pointers, workspace: int, workspace_bytes: int
    ) -> Callable[[int], None]:
        """Return `launch` for these addresses as a function of the stream, with all arguments prepared."""
        of_a, of_b, of_d, _ = self.layouts
        descriptor, algo = self.descriptor(pointers), algorithm.algo
        d, size = c_void_p(pointers.c), c_size_t(workspace_bytes)
        arguments = (
            *(self.handle, descriptor.value, self._alpha_at, c_void_p(pointers.b), of_a, c_void_p(pointers.a), of_b),
            *(self._beta_at, d, of_d, d, of_d, byref(algo), c_void_p(workspace), size),
        )
        matmul = self.library.matmul

        # A default argument, so that descriptor and structure live as long as the function.
        def enqueue(stream: int, _keep: object = (self, descriptor, algo)) -> None:
            if status := matmul(*arguments, stream):
                self.library.require(status, "Matmul")

        return enqueue

    def native(self, algorithm: Algorithm, exchange: int, described: Callable[..., tuple[int, object]]) -> Any:
        """Return a call of the algorithm in the form that the C extension takes (_native_call.h).

        exchange: address of the driver's function that exchanges the capture mode.
        described: returns the descriptor for addresses of bias and scales, and the object that owns it.
        """
        of_a, of_b, of_d, _ = self.layouts
        matmul = ctypes.cast(self.library.matmul, c_void_p).value
        numbers = (ctypes.addressof(each) for each in (self._alpha, self._beta))
        layouts = (each.value for each in (of_a, of_b, of_d))
        # `described`, which the extension keeps, must keep this object and the algorithm alive.
        parts = (self.handle.value, *numbers, *layouts, ctypes.addressof(algorithm.algo))
        return matmul, exchange, *parts, algorithm.workspace_bytes, described

    def product_arguments(self, pointers: Pointers) -> tuple[object, ...]:
        """Return handle, descriptor, alpha, layouts of A and B, beta, layouts of C and D, which define the product."""
        of_a, of_b, of_d, _ = self.layouts
        descriptor = self.descriptor(pointers).value
        return self.handle, descriptor, self._alpha_at, of_a, of_b, self._beta_at, of_d, of_d

    def heuristic(self, pointers: Pointers, workspace_bytes: int, asked: int) -> list[Algorithm]:
        """Return the heuristic's algorithms, best first by its own estimate; empty for unsupported operations."""
        library, dialect = self.library, self.library.dialect
        preference = Owned(library, "MatmulPreference")
        preference.set(dialect.pref_max_workspace_bytes, workspace_bytes)
        if dialect.pref_reduction_scheme_mask is not None:
            preference.set(dialect.pref_reduction_scheme_mask, self.operation.reductions)
        for attribute, aligned in zip(dialect.pref_min_alignments, pointers.alignments, strict=False):
            preference.set(attribute, aligned)
        results, count = (api.result_type(dialect.algorithm_bytes) * asked)(), c_int()
        descriptor = self.descriptor(pointers)
        asked_of = self.handle, descriptor.value, *self.layouts, preference.value
        status = library.status("MatmulAlgoGetHeuristic", *asked_of, asked, results, byref(count))
        if status != api.STATUS_SUCCESS:
            return []
        return [
            Algorithm(bytes(result.algo), result.workspace_size, result.waves_count)
            for result in results[: count.value]
            if result.state == api.STATUS_SUCCESS
        ]

    def _descriptor(self, pointers: Pointers) -> Owned:
        operation, dialect = self.operation, self.library.dialect
        made = Owned(self.library, "MatmulDesc", operation.compute, operation.scale_type)
        for attribute, transposed in zip(
            dialect.desc_trans, (operation.transposed_a, operation.transposed_b), strict=True
        ):
            made.set(attribute, dialect.operations[transposed])
        made.set(dialect.desc_epilogue, operation.epilogue)
        if operation.has_bias:
            # Set before algorithms are requested, too, since they depend on the bias's alignment.
            made.set(dialect.desc_bias_pointer, pointers.bias)
            made.set(dialect.desc_bias_data_type, operation.d.dtype)
        if operation.scales is not None:
            for attribute, pointer in zip(
                dialect.desc_scale_pointers, (pointers.scale_b, pointers.scale_a), strict=True
            ):
                made.set(attribute, pointer)
            if dialect.desc_fast_accum is not None:
                made.set(dialect.desc_fast_accum, int(operation.fast_accum))
            if operation.scales != (api.SCALE_SCALAR, api.SCALE_SCALAR):
                # Libraries older than cuBLASLt 12.8 and ROCm 7 have no scale modes and support only scalars.
                for attribute, mode in zip(dialect.desc_scale_modes, operation.scales, strict=True):
                    made.set(attribute, mode)
        return made
