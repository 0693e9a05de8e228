"""PreparedCall: a winner's launches, ready for operands of one shape that lie in one way on one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from genkern.errors import ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.kernels.argument import Counters, Workspace
from genkern.runtime.launch.launcher import Driver, make_launches
from genkern.runtime.launch.parameters import COUNTERS, WORKSPACE, Layout, parameters_of
from genkern.runtime.launch.scratch import Scratch
from genkern.runtime.launch.shape import Launch, LaunchShape
from genkern.runtime.table import Choice, Device

# What a kernel's 32-bit offsets reach, in elements.
_REACH = 2**31
# A workspace grows with M and stays: for an M that nobody tuned it is no larger than cuBLASLt's here.
_MOST_UNTUNED_BYTES = 64 * 2**20


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
    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any: ...


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
        elements, counters = plan.workspace_elements(known)
        self._workspace_bytes = elements * DTYPES[plan.workspace_dtype].size_bytes
        self._counter_bytes = counters * 4
        if not choice.exact and self._workspace_bytes > _MOST_UNTUNED_BYTES:
            raise ResultsError(f"{choice.why}, whose kernel would keep {self._workspace_bytes >> 20} MiB for this one")
        self._gpu = gpu
        launches = []
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
                launches.append(Launch(shape, parameters))
            names = *layouts, WORKSPACE, COUNTERS
            self._launch_all = make_launches(gpu.driver, launches, names, len(layouts)).launch
        arguments = [argument for launch in plan.launches for argument in launch.arguments]
        self._takes_scratch = any(isinstance(argument, (Workspace, Counters)) for argument in arguments)

    def __call__(self, addresses: tuple[int, ...]) -> bool:
        """Launch on the current stream, with the operands at these addresses.

        False, and nothing done, where one of them is no multiple of 16. Raises LaunchError.
        """
        gpu = self._gpu
        if not gpu.is_current():
            with gpu.made_current():
                return self(addresses)
        stream = gpu.stream()
        if not self._takes_scratch:
            return self._launch_all(stream, addresses)
        capture = gpu.driver.capture(stream)
        scratch = gpu.scratch.take(stream, capture, self._workspace_bytes, self._counter_bytes)
        try:
            return self._launch_all(stream, addresses + scratch)
        except BaseException:
            gpu.scratch.drop(stream, capture)
            raise
