"""The `cublaslt` backend: every algorithm that NVIDIA's cuBLASLt has for a GEMM, and the one that was found fastest.

Through ctypes on the libcublasLt that PyTorch brings, rather than nvmath-python's bindings: those are a dependency of
17 functions (cublaslt_api.py) that wraps the same library, and has to find the one that PyTorch has loaded as well. The
library that is called is then the very one whose torch.mm is timed beside it.

    matmul = prepare(problem, device_index)              raises NotCovered
    algorithms = candidates(matmul, pointers, most=32)
    matmul.bind(algorithm, pointers, workspace, workspace_bytes)(stream)

Results keep an algorithm by its opaque structure and the library's version (genkern.timing.libraries), and `settled`
looks it up again. Nothing here imports PyTorch: addresses, streams and workspace are the caller's. For AMD's hipBLASLt
there is no such file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends import cublaslt_search as search
from genkern.runtime.backends.cublaslt_api import ALGORITHM_BYTES, SCALE_BLK128X128, Api, CublasLtError, failure
from genkern.runtime.backends.cublaslt_library import load
from genkern.runtime.backends.cublaslt_matmul import WORKSPACE_BYTES, Algorithm, Matmul, Pointers
from genkern.runtime.backends.cublaslt_operation import NotCovered, operation_of, refusal
from genkern.timing.libraries import CUBLASLT, KeptAlgorithm

__all__ = (
    "WORKSPACE_BYTES",
    "Algorithm",
    "CublasLtError",
    "Matmul",
    "NotCovered",
    "Pointers",
    "available",
    "candidates",
    "failure",
    "kept",
    "prepare",
    "refusal",
    "settled",
)
NAME = CUBLASLT
# How many of the heuristic's are raced when an algorithm was kept by another version of the library.
RACED_ANEW = 4
# The microseconds of one call of an algorithm.
TimeUs = Callable[[Algorithm], float]


def available() -> str:
    """Why the library is not there, or ""."""
    return load()[1]


def library() -> Api:
    """The library. Raises CublasLtError where `available` says why it is not there."""
    found, why = load()
    if found is None:
        raise CublasLtError(why)
    return found


def prepare(problem: GemmProblem, device_index: int, leading: Mapping[str, int] | None = None) -> Matmul:
    """The problem on a device, which must be the current one; `leading` as in `operation_of`.

    Raises NotCovered where the library does not compute the whole problem, CublasLtError where it refuses.
    """
    operation = operation_of(problem, leading)
    return Matmul(library(), operation, device_index)


def candidates(
    matmul: Matmul, pointers: Pointers, most: int, workspace_bytes: int = WORKSPACE_BYTES
) -> list[Algorithm]:
    """Up to `most`: what the heuristic returns, best first by its word, then what enumeration finds beyond it.

    Empty where the library supports no such product: then there is nothing to enumerate either.
    """
    known = search.heuristic(matmul, pointers, workspace_bytes)[:most]
    if not known or len(known) == most:
        return known
    return known + search.beyond(matmul, pointers, known, most - len(known), workspace_bytes)


def kept(matmul: Matmul, algorithm: Algorithm) -> KeptAlgorithm:
    """The algorithm as results keep it."""
    return KeptAlgorithm(matmul.library.version, algorithm.data)


def settled(
    matmul: Matmul,
    pointers: Pointers,
    wanted: KeptAlgorithm | None,
    time_us: TimeUs | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
) -> Algorithm | None:
    """The algorithm to call: the one that a result keeps, if this library has it; else it is looked up anew.

    That is the fastest of the heuristic's first RACED_ANEW by `time_us`, or its first where nobody can take times (in
    the middle of a capture, say). None where the library supports no such product, and where an algorithm that nobody
    has checked may be wrong: of cuBLASLt 13.1's for scales of 128x128 blocks on an H200, some take those of the block
    beside it (tests/runtime/backends/test_cublaslt_gpu.py).
    """
    if wanted is not None and wanted.version == matmul.library.version and len(wanted.data) == ALGORITHM_BYTES:
        found = matmul.check(Algorithm(wanted.data, 0, source="kept"), pointers)
        if found is not None and found.workspace_bytes <= workspace_bytes:
            return found
    if SCALE_BLK128X128 in (matmul.operation.scales or ()):
        return None
    first = search.heuristic(matmul, pointers, workspace_bytes)[:RACED_ANEW]
    if time_us is None or len(first) < 2:
        return next(iter(first), None)
    return min(first, key=time_us)
