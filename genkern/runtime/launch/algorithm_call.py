"""AlgorithmCall: the library's algorithm that won, prepared for operands of one shape and layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.errors import LaunchError
from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends.lt import BACKENDS
from genkern.runtime.backends.lt_api import LtError
from genkern.runtime.backends.lt_matmul import Pointers
from genkern.runtime.launch import launcher
from genkern.runtime.launch.parameters import Layout
from genkern.runtime.launch.prepared_call import LiveGpu, ReadyCall, workspace_for
from genkern.timing.libraries import stored_algorithm

# Algorithms are measured on tensors of PyTorch's allocator, which are aligned to 512 bytes. The library's heuristic
# assumes 256 bytes unless it is told otherwise (cublasLt.h, MIN_ALIGNMENT).
_ALIGNMENT = 256


class AlgorithmCall(ReadyCall):
    """The library's algorithm that has the name `name` in results, prepared for operands with these layouts.

    If this library has another version, or refuses the algorithm for these layouts, its heuristic's first algorithm is
    used; with `exactly`, LaunchError is raised instead.

    gpu: the GPU.
    problem: the problem.
    layouts: the layout of each operand, by name, in the order in which calls give their addresses.
    body, memory_bytes: as in PreparedCall.

    Raises LaunchError if the library is missing or does not compute the problem.
    """

    alignment = _ALIGNMENT

    def __init__(
        self, gpu: LiveGpu, problem: GemmProblem, name: str, layouts: Mapping[str, Layout], *, exactly: bool = False
    ) -> None:
        self._gpu = gpu
        self._names = tuple(layouts)
        kept = stored_algorithm(name)
        if kept is None:
            raise LaunchError(f"{name[:40]!r} is no algorithm of a library")
        backend = BACKENDS[kept.library]
        leading = {matrix: layouts[matrix].pitch for matrix in ("a", "b", "c")}
        try:
            # The library allocates and loads modules here, and the first call may be made while a graph is captured.
            with gpu.made_current(), gpu.driver.relaxed():
                self._matmul = backend.prepare(problem, gpu.index, leading)
                aligned = self._pointers((_ALIGNMENT,) * len(layouts))
                found = backend.settled(self._matmul, aligned, kept)
        except LtError as error:
            raise LaunchError(str(error)) from None
        if found is None:
            raise LaunchError("the library has no algorithm for it")
        if exactly and found.data != kept.data:
            raise LaunchError("the library uses another algorithm for it than the one that was tested")
        self._algorithm = found
        self.memory_bytes = found.workspace_bytes, 0
        self.body: Any = None
        if launcher._native is not None:
            self.body = self._matmul.native(found, gpu.driver.entries.exchange, self._described)

    def _launched(self, addresses: tuple[int, ...]) -> bool:
        together = 0
        for address in addresses:
            together |= address
        if together % _ALIGNMENT:
            return False
        stream, (size, _) = self._gpu.stream(), self.memory_bytes
        if not size:
            return self._launch(addresses, 0, stream)
        with workspace_for(self._gpu, stream, size, 0) as (workspace, _):
            return self._launch(addresses, workspace, stream)

    def failure(self, status: int) -> LaunchError:
        """Return the error for a status of the library."""
        return LaunchError(self._matmul.library.failure(status))

    def _launch(self, addresses: tuple[int, ...], workspace: int, stream: int) -> bool:
        size, _ = self.memory_bytes
        try:
            # The library loads an algorithm's kernel when it is first launched.
            with self._gpu.driver.relaxed():
                self._matmul.launch(self._algorithm, self._pointers(addresses), workspace, size, stream)
        except LtError as error:
            raise LaunchError(str(error)) from None
        return True

    def _described(self, *extra: int) -> tuple[int, object]:
        """Return a descriptor with the addresses of the operands besides A, B and C, and the object that owns it."""
        owned = self._matmul.descriptor(self._pointers((0, 0, 0, *extra)))
        return int(owned.value.value or 0), owned

    def _pointers(self, addresses: tuple[int, ...]) -> Pointers:
        return Pointers(**dict(zip(self._names, addresses, strict=True)))
