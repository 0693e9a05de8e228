"""Backend: lists the algorithms of cuBLASLt or hipBLASLt for a problem, and finds the algorithm of a result again.

    matmul = backend.prepare(problem, device_index)              raises NotCovered
    algorithms = backend.candidates(matmul, pointers, most=32)
    matmul.bind(algorithm, pointers, workspace, workspace_bytes)(stream)

Results store an algorithm by its opaque structure and the library's version (genkern.timing.libraries); `settled` finds
it again. Nothing here imports PyTorch: the caller provides addresses, streams and workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends.lt_api import SCALE_BLK128X128, Api, Dialect, LtError
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES, Algorithm, Matmul, Pointers
from genkern.runtime.backends.lt_operation import operation_of
from genkern.timing.libraries import StoredAlgorithm

# Algorithms of the heuristic that are timed if a result's algorithm is from another version of the library.
RACED_ANEW = 4
# Returns the time of one call of an algorithm in microseconds.
TimeUs = Callable[[Algorithm], float]
# Returns up to a number of further algorithms that run within a number of bytes of workspace and are not known yet.
Beyond = Callable[[Matmul, Pointers, Sequence[Algorithm], int, int], list[Algorithm]]


@dataclass(frozen=True)
class Backend:
    """One library.

    dialect: its names and numbers.
    load: returns the library; or None, and why it is not available.
    checked: returns an algorithm with the workspace that it needs here; None if the library says that it does not run.
    beyond: finds further algorithms by enumeration.
    most: the largest number of algorithms that are raced.
    asked: algorithms requested from the heuristic.
    version_is_build: True if libraries with the same version have the same algorithms.
    """

    dialect: Dialect
    load: Callable[[], tuple[Api | None, str]]
    checked: Callable[[Matmul, Algorithm, Pointers], Algorithm | None]
    beyond: Beyond
    most: int
    asked: int
    version_is_build: bool = True

    @property
    def name(self) -> str:
        return self.dialect.name

    def available(self) -> str:
        """Return why the library is not available; "" if it is."""
        return self.load()[1]

    def library(self) -> Api:
        """Return the library. Raise LtError if it is not available."""
        found, why = self.load()
        if found is None:
            raise LtError(why)
        return found

    def prepare(self, problem: GemmProblem, device_index: int, leading: Mapping[str, int] | None = None) -> Matmul:
        """Return the problem's operation on a device, which must be the current one; `leading` as in `operation_of`.

        Raises NotCovered if the library does not compute the whole problem, LtError if it refuses the operation.
        """
        operation = operation_of(problem, self.dialect, leading)
        return Matmul(self.library(), operation, device_index)

    def candidates(
        self, matmul: Matmul, pointers: Pointers, most: int, workspace_bytes: int = WORKSPACE_BYTES
    ) -> list[Algorithm]:
        """Return up to `most` algorithms: the heuristic's, best first by its own estimate, then enumerated ones.

        Empty if the heuristic returns none: then the library does not support the product.
        """
        known = matmul.heuristic(pointers, workspace_bytes, self.asked)[:most]
        if not known or len(known) == most:
            return known
        return known + self.beyond(matmul, pointers, known, most - len(known), workspace_bytes)

    def finds_again(self, kept: StoredAlgorithm, version: int | None = None) -> bool:
        """Return True if later calls get exactly this kernel.

        That holds if the library has the algorithm's version, and a version identifies a build (`version_is_build`).
        `version` is the library's version; None means the algorithm's.
        """
        return self.version_is_build and kept.library == self.name and version in (None, kept.version)

    def kept(self, matmul: Matmul, algorithm: Algorithm) -> StoredAlgorithm:
        """Return the algorithm in the form that results store."""
        return StoredAlgorithm(matmul.library.version, algorithm.data, self.name)

    def found(self, matmul: Matmul, pointers: Pointers, wanted: StoredAlgorithm | None) -> Algorithm | None:
        """Return the algorithm of a result; None if it is from another library or version, or does not run here."""
        if wanted is None or (wanted.library, wanted.version) != (self.name, matmul.library.version):
            return None
        if len(wanted.data) != self.dialect.algorithm_bytes:
            return None
        return self.checked(matmul, Algorithm(wanted.data, 0, source="kept"), pointers)

    def settled(
        self,
        matmul: Matmul,
        pointers: Pointers,
        wanted: StoredAlgorithm | None,
        time_us: TimeUs | None = None,
        workspace_bytes: int = WORKSPACE_BYTES,
    ) -> Algorithm | None:
        """Return the algorithm to call: the result's, if this library has it, else one of the heuristic's.

        The heuristic's choice is the fastest of its first RACED_ANEW by `time_us`, or its first if times cannot be
        taken (during a graph capture, for example). None if the library does not support the product. Also None for
        scales of 128x128 blocks, since an algorithm without a check may be wrong: some algorithms of cuBLASLt 13.1 on
        an H200 read the neighbouring block's scales (tests/runtime/backends/test_cublaslt_gpu.py).
        """
        found = self.found(matmul, pointers, wanted)
        if found is not None and found.workspace_bytes <= workspace_bytes:
            return found
        if SCALE_BLK128X128 in (matmul.operation.scales or ()):
            return None
        first = matmul.heuristic(pointers, workspace_bytes, self.asked)[:RACED_ANEW]
        if time_us is None or len(first) < 2:
            return next(iter(first), None)
        return min(first, key=time_us)
