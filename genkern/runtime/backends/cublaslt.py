"""The `cublaslt` backend: every algorithm that NVIDIA's cuBLASLt has for a GEMM, and the one that was found fastest.

Through ctypes on the libcublasLt that PyTorch brings, rather than nvmath-python's bindings: those are a dependency of
17 functions that wraps the same library, and has to find the one that PyTorch has loaded as well. The library that is
called is then the very one whose torch.mm is timed beside it.
"""

from __future__ import annotations

from genkern.runtime.backends import cublaslt_library
from genkern.runtime.backends.cublaslt_api import DIALECT
from genkern.runtime.backends.cublaslt_search import ASKED, beyond, checked
from genkern.runtime.backends.lt_backend import Backend

BACKEND = Backend(
    DIALECT,
    lambda: cublaslt_library.load(),
    checked,
    lambda matmul, pointers, known, most, workspace_bytes: beyond(matmul, pointers, known, most, workspace_bytes),
    # All that the heuristic returns (some eight), then what enumeration finds beyond it.
    most=32,
    asked=ASKED,
)
