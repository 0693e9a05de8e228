"""PreparedCall: a winner's launches, prepared for operands of one shape and layout on one GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from genkern.errors import LaunchError, ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import INT32
from genkern.gemm.records import code_digest
from genkern.kernels.contract.argument import Counters, Workspace
from genkern.kernels.plan import LaunchPlan
from genkern.ops.op import get_op
from genkern.result.package import PackedCall, PackedOperand
from genkern.result.result import Result
from genkern.runtime.bundles.table import Choice, Device
from genkern.runtime.launch.launch_shape import PreparedLaunch
from genkern.runtime.launch.launcher import Driver, make_launches
from genkern.runtime.launch.parameters import (
    ALIGNMENT,
    COUNTERS,
    WORKSPACE,
    Layout,
    Parameter,
    TensorMap,
    parameters_of,
)
from genkern.runtime.launch.workspaces import Workspaces

# A workspace grows with M and is kept. For an M that was not tuned it must not exceed the workspace that genkern gives
# cuBLASLt (lt_matmul).
_MOST_UNTUNED_BYTES = 64 * 2**20
# Largest number of elements of a workspace, which kernels count in 32 bits, and of counters: one for each tile
# of 16 x 16 in a C of 131072 x 131072.
_MOST_ELEMENTS, _MOST_COUNTERS = INT32, 2**26


class LiveGpu(Protocol):
    """A GPU of this machine as calls need it (implemented in genkern.runtime.launch.torch_gpu)."""

    index: int
    workspaces: Workspaces

    @property
    def identity(self) -> Device: ...
    @property
    def driver(self) -> Driver: ...
    @property
    def stream_of(self) -> Callable[[int], int]: ...
    @property
    def empty_here(self) -> Callable[..., Any] | None: ...
    def stream(self) -> int: ...
    def temporary(self, size_bytes: int) -> Any: ...
    def is_current(self) -> bool: ...
    def made_current(self) -> Any: ...
    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any: ...


def _changed(winner: Result) -> str:
    """Return how the format's operands differ from those with which the winner was packed; "" if they do not."""
    problem = winner.problem
    now = tuple(map(PackedOperand.of, get_op(problem.op).operands(problem)))
    if now == winner.operands:
        return ""
    packed, declared = ("; ".join(map(str, operands)) for operands in (winner.operands, now))
    return f"its kernel takes {packed}, {problem.op} now has {declared}"


def _require_code(call: PackedCall, images: Sequence[bytes]) -> None:
    """Raise ResultsError unless these binaries have the machine code that the bundle states for the call, if any."""
    # Imported here, since a program that calls no winner needs no reader of binaries.
    from genkern.compile.binary.code_object import code_sha256

    if call.code and call.code != code_digest([code_sha256(image) for image in images]):
        raise ResultsError("its binaries have other machine code than the bundle says: pack it again")


def _require_within(parameters: Sequence[Parameter], workspace_bytes: int) -> None:
    """Raise ResultsError if the tensor map of a copy extends beyond the workspace."""
    for each in parameters:
        if isinstance(each, TensorMap) and each.tensor == WORKSPACE:
            layout, start = each.layout, each.offset_bytes
            end = start + ((layout.rows - 1) * layout.pitch + layout.columns) * layout.element_bytes
            if not (start >= 0 and layout.columns <= layout.pitch and end <= workspace_bytes):
                raise ResultsError(f"its plan has a copy at bytes {start} to {end} of a workspace of {workspace_bytes}")


def memory_refused(plan: LaunchPlan, known: Mapping[str, int], *, exact: bool) -> str:
    """Return why the plan's workspace is too large for a call; "" if it is not.

    With `exact`, the limit for an M that was not tuned does not apply.
    """
    elements, counters = plan.workspace_elements(known)
    if not (0 <= elements <= _MOST_ELEMENTS and 0 <= counters <= _MOST_COUNTERS):
        return f"plan asks for {elements} elements and {counters} counters"
    size = elements * DTYPES[plan.workspace_dtype].size_bytes
    if not exact and size > _MOST_UNTUNED_BYTES:
        return f"kernel would keep {size >> 20} MiB of workspace for this M"
    return ""


@contextlib.contextmanager
def workspace_for(gpu: LiveGpu, stream: int, workspace_bytes: int, counter_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield addresses of a workspace and of zeroed counters for launches on the current stream within the block.

    Raises LaunchError if memory is exhausted. If the block raises, the stream's counters are dropped: they may not be
    zero.
    """
    try:
        if capture := gpu.driver.capture(stream):
            # The workspace belongs to the graph's memory pool, which reuses it for what is captured after the block.
            workspace = gpu.temporary(workspace_bytes)
            counters = gpu.workspaces.counters(stream, capture, counter_bytes)
            if counters is None:
                zeroed = gpu.temporary(counter_bytes).zero_()
                counters = zeroed.data_ptr()
            yield workspace.data_ptr(), counters
        elif (kept := gpu.workspaces.take(stream, workspace_bytes, counter_bytes)) is not None:
            yield kept
        else:
            # A temporary tensor of PyTorch's allocator, which reuses it for later work on this stream.
            workspace, zeroed = gpu.temporary(workspace_bytes), gpu.temporary(counter_bytes).zero_()
            yield workspace.data_ptr(), zeroed.data_ptr()
    except BaseException:
        gpu.workspaces.drop(stream)
        raise


class ReadyCall:
    """Launches that were prepared on one GPU."""

    _gpu: LiveGpu

    def __call__(self, addresses: tuple[int, ...]) -> bool:
        """Launch on the current stream, with the operands at these addresses.

        Return False, with nothing launched, if an address is not a multiple of `alignment`. Raises LaunchError.
        """
        if self._gpu.is_current():
            return self._launched(addresses)
        with self._gpu.made_current():
            return self._launched(addresses)

    def _launched(self, addresses: tuple[int, ...]) -> bool:
        """Launch as __call__ does, with this GPU as the current one."""
        raise NotImplementedError


class PreparedCall(ReadyCall):
    """The launches of `choice` on `gpu` for operands with these layouts.

    layouts: the layout of each operand, by name, in the order in which calls give their addresses.
    m: the M of the call.
    body: the launches.
    memory_bytes: bytes of the workspace and of the counters.

    Raises ResultsError if a layout breaks an assumption of a kernel, LaunchError if a binary cannot be loaded.
    """

    alignment = ALIGNMENT

    def __init__(self, gpu: LiveGpu, choice: Choice, layouts: Mapping[str, Layout], m: int) -> None:
        assert choice.call is not None
        assert choice.bundle is not None
        for name, layout in layouts.items():
            # Kernels count in 64 bits if a matrix has INT32 or more elements (families/index_width.py), but not if a
            # smaller one spans them because of gaps between its rows.
            if layout.rows * layout.columns < INT32 <= layout.rows * layout.pitch and layout.pitch != layout.columns:
                raise ResultsError(f"{name} spans {layout.rows * layout.pitch} elements, beyond 32-bit offsets")
        if choice.winner is not None and (reason := _changed(choice.winner)):
            raise ResultsError(f"{reason}: pack it again")
        plan, bundle = choice.call.plan, choice.bundle
        known = {"units": gpu.identity.compute_units, "M": m}
        elements, counters = plan.workspace_elements(known)
        # The limit for an M that was not tuned does not hold for a tuned M, nor if the call must be batch-invariant:
        # the library may not serve these. The absolute limits always hold.
        if why := memory_refused(plan, known, exact=choice.exact or choice.sums != ""):
            raise ResultsError(f"{choice.why}, whose {why}")
        arguments = [argument for launch in plan.launches for argument in launch.arguments]
        workspace_bytes = elements * DTYPES[plan.workspace_dtype].size_bytes
        takes_workspace, takes_counters = (
            any(isinstance(each, kind) for each in arguments) for kind in (Workspace, Counters)
        )
        self.memory_bytes = (
            max(workspace_bytes, 16) if takes_workspace else 0,
            max(counters * 4, 16) if takes_counters else 0,
        )
        self._gpu = gpu
        images = [bundle.image(sha256) for sha256 in choice.call.binaries]
        _require_code(choice.call, images)
        launches = []
        with gpu.made_current():
            for launch, sha256, image in zip(plan.launches, choice.call.binaries, images, strict=True):
                binary = bundle.contents.binaries[sha256]
                parameters = parameters_of(launch, binary, layouts, known)
                _require_within(parameters, workspace_bytes)
                function = gpu.driver.function(gpu.index, sha256, image, binary.symbol, binary.shared_bytes)
                launches.append(PreparedLaunch.of(launch, binary, function, parameters, known))
            names = *layouts, WORKSPACE, COUNTERS
            self.body = make_launches(gpu.driver, launches, names, len(layouts))

    def _launched(self, addresses: tuple[int, ...]) -> bool:
        stream = self._gpu.stream()
        if not any(self.memory_bytes):
            return self.body.launch(stream, addresses)
        with workspace_for(self._gpu, stream, *self.memory_bytes) as own:
            return self.body.launch(stream, addresses + own)

    def failure(self, status: int) -> LaunchError:
        """Return the error for a status of the driver."""
        return LaunchError(f"a launch failed: {self._gpu.driver.error_text(status)}")
