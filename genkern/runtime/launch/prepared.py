"""PreparedCall: a winner's launches, ready for operands of one shape that lie in one way on one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from genkern.errors import ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.kernels.argument import Counters, Workspace
from genkern.runtime.launch.cuda_driver import LaunchShape
from genkern.runtime.launch.launcher import Driver, Launcher
from genkern.runtime.launch.parameters import ALIGNMENT, COUNTERS, WORKSPACE, Layout, parameters_of
from genkern.runtime.launch.scratch import Scratch
from genkern.runtime.table import Choice, Device

# What a kernel's 32-bit offsets reach, in elements.
_REACH = 2**31


class Gpu(Protocol):
    """What a call needs of a GPU (genkern.runtime.launch.gpu)."""

    index: int
    scratch: Scratch

    @property
    def identity(self) -> Device: ...
    @property
    def driver(self) -> Driver: ...
    def stream(self) -> int: ...
    def is_current(self) -> bool: ...
    def made_current(self) -> Any: ...
    def empty(self, shape: Sequence[int], dtype: Any) -> Any: ...


class PreparedCall:
    """The launches of `choice`, on `gpu`, for operands with these layouts, named in the order in which calls give them.

    Raises ResultsError where they do not lie as the kernels were promised, LaunchError where a binary cannot be loaded.
    """

    def __init__(self, gpu: Gpu, choice: Choice, layouts: Mapping[str, Layout], m: int) -> None:
        assert choice.call is not None
        assert choice.bundle is not None
        for name, layout in layouts.items():
            if layout.pitch != layout.columns and layout.rows * layout.pitch >= _REACH:
                raise ResultsError(f"{name} spans {layout.rows * layout.pitch} elements, past what its kernel reaches")
        plan, bundle = choice.call.plan, choice.bundle
        known = {"units": gpu.identity.compute_units, "M": m}
        slots = {name: place for place, name in enumerate((*layouts, WORKSPACE, COUNTERS))}
        self._gpu = gpu
        self._launchers = []
        with gpu.made_current():
            for launch, sha256 in zip(plan.launches, choice.call.binaries, strict=True):
                binary = bundle.contents.binaries[sha256]
                parameters = parameters_of(launch, binary, layouts, known)
                image = bundle.image(sha256)
                function = gpu.driver.function(gpu.index, sha256, image, binary.symbol, binary.shared_bytes)
                shape = LaunchShape(
                    function,
                    launch.programs(known),
                    binary.threads,
                    binary.shared_bytes,
                    launch.cluster,
                    launch.starts_early,
                )
                self._launchers.append(Launcher(gpu.driver, shape, parameters, slots))
        elements, counters = plan.workspace_elements(known)
        self._workspace_bytes = elements * DTYPES[plan.workspace_dtype].size_bytes
        self._counter_bytes = counters * 4
        arguments = [argument for launch in plan.launches for argument in launch.arguments]
        self._takes_scratch = any(isinstance(argument, (Workspace, Counters)) for argument in arguments)

    def __call__(self, addresses: tuple[int, ...]) -> bool:
        """Launch on the current stream, with the operands at these addresses; False, and nothing done, where one of
        them is no multiple of 16. Raises LaunchError.
        """
        together = 0
        for address in addresses:
            together |= address
        if together % ALIGNMENT:
            return False
        gpu = self._gpu
        if not gpu.is_current():
            with gpu.made_current():
                self._launch(addresses)
        else:
            self._launch(addresses)
        return True

    def _launch(self, addresses: tuple[int, ...]) -> None:
        gpu = self._gpu
        stream = gpu.stream()
        if not self._takes_scratch:
            for launcher in self._launchers:
                launcher(stream, addresses)
            return
        capture = gpu.driver.capture(stream)
        addresses += gpu.scratch.take(stream, capture, self._workspace_bytes, self._counter_bytes)
        try:
            for launcher in self._launchers:
                launcher(stream, addresses)
        except BaseException:
            gpu.scratch.drop(stream, capture)
            raise
