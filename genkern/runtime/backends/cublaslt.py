"""The `cublaslt` backend: algorithms that NVIDIA's cuBLASLt offers for a GEMM, up to a limit.

It calls, through ctypes, the libcublasLt that this process has loaded: the algorithms that are raced belong to the
library that torch.mm, which is timed beside them, calls. nvmath-python's bindings would be a dependency for 18
functions, and would have to find the same library, too.
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
    # The heuristic returns about eight algorithms; enumeration adds the others.
    most=32,
    asked=ASKED,
)
