"""Backend: from a problem to the algorithms of cuBLASLt or hipBLASLt, and the one that was found fastest.

    matmul = backend.prepare(problem, device_index)              raises NotCovered
    algorithms = backend.candidates(matmul, pointers, most=32)
    matmul.bind(algorithm, pointers, workspace, workspace_bytes)(stream)

Results keep an algorithm by its opaque structure and the library's version (genkern.timing.libraries), and `settled`
looks it up again. Nothing here imports PyTorch: addresses, streams and workspace are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends.lt_api import SCALE_BLK128X128, Api, Dialect, LtError
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES, Algorithm, Matmul, Pointers
from genkern.runtime.backends.lt_operation import operation_of
from genkern.timing.libraries import KeptAlgorithm

# How many of the heuristic's are raced when an algorithm was kept by another version of the library.
RACED_ANEW = 4
# The microseconds of one call of an algorithm.
TimeUs = Callable[[Algorithm], float]
# Up to so many algorithms that run, within so many bytes of workspace, and are not among the known ones.
Beyond = Callable[[Matmul, Pointers, Sequence[Algorithm], int, int], list[Algorithm]]


@dataclass(frozen=True)
class Backend:
    """One library. `load` gives it, or why it is not there.

    `checked` gives an algorithm with the workspace that it needs here, None where the library says that it does not
    run. The heuristic is asked for `asked`, and of it and what `beyond` finds `most` are launched. `version_is_build`:
    libraries that say the same version have the same algorithms.
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
        """Why the library is not there, or ""."""
        return self.load()[1]

    def library(self) -> Api:
        """The library. Raises LtError where `available` says why it is not there."""
        found, why = self.load()
        if found is None:
            raise LtError(why)
        return found

    def prepare(self, problem: GemmProblem, device_index: int, leading: Mapping[str, int] | None = None) -> Matmul:
        """The problem on a device, which must be the current one; `leading` as in `operation_of`.

        Raises NotCovered where the library does not compute the whole problem, LtError where it refuses.
        """
        operation = operation_of(problem, self.dialect, leading)
        return Matmul(self.library(), operation, device_index)

    def candidates(
        self, matmul: Matmul, pointers: Pointers, most: int, workspace_bytes: int = WORKSPACE_BYTES
    ) -> list[Algorithm]:
        """Up to `most`: what the heuristic returns, best first by its word, then what enumeration finds beyond it.

        Empty where the library supports no such product: then there is nothing to enumerate either.
        """
        known = matmul.heuristic(pointers, workspace_bytes, self.asked)[:most]
        if not known or len(known) == most:
            return known
        return known + self.beyond(matmul, pointers, known, most - len(known), workspace_bytes)

    def finds_again(self, kept: KeptAlgorithm, version: int | None = None) -> bool:
        """Whether calls that ask for it get this very kernel: by a library of its version, or of this one."""
        return self.version_is_build and kept.library == self.name and version in (None, kept.version)

    def kept(self, matmul: Matmul, algorithm: Algorithm) -> KeptAlgorithm:
        """The algorithm as results keep it."""
        return KeptAlgorithm(matmul.library.version, algorithm.data, self.name)

    def found(self, matmul: Matmul, pointers: Pointers, wanted: KeptAlgorithm | None) -> Algorithm | None:
        """The algorithm that a result keeps; None where this library is another, or says that it does not run."""
        if wanted is None or (wanted.library, wanted.version) != (self.name, matmul.library.version):
            return None
        if len(wanted.data) != self.dialect.algorithm_bytes:
            return None
        return self.checked(matmul, Algorithm(wanted.data, 0, source="kept"), pointers)

    def settled(
        self,
        matmul: Matmul,
        pointers: Pointers,
        wanted: KeptAlgorithm | None,
        time_us: TimeUs | None = None,
        workspace_bytes: int = WORKSPACE_BYTES,
    ) -> Algorithm | None:
        """The algorithm to call: the one that a result keeps, if this library has it; else it is looked up anew.

        That is the fastest of the heuristic's first RACED_ANEW by `time_us`, or its first where nobody can take times
        (in the middle of a capture, say). None where the library supports no such product, and where an algorithm that
        nobody has checked may be wrong: of cuBLASLt 13.1's for scales of 128x128 blocks on an H200, some take those of
        the block beside it (tests/runtime/backends/test_cublaslt_gpu.py).
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
