"""The vendor libraries whose algorithms are raced one by one, by their names in results."""

from __future__ import annotations

from genkern.runtime.backends import cublaslt, hipblaslt
from genkern.runtime.backends.lt_backend import Backend
from genkern.timing.libraries import LT, stored_algorithm

BACKENDS = {backend.name: backend for backend in (cublaslt.BACKEND, hipblaslt.BACKEND)}


def backend_of(vendor: str) -> Backend:
    """Return the library for a vendor's GPUs; `vendor` is "nvidia" or "amd"."""
    return BACKENDS[LT[vendor]]


def is_found_again(name: str, version: int | None = None) -> bool:
    """Return True if `name` is an algorithm, and later calls get exactly its kernel (`Backend.finds_again`)."""
    kept = stored_algorithm(name)
    return kept is not None and BACKENDS[kept.library].finds_again(kept, version)
