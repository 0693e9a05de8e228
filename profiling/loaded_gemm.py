"""LoadedGemm: a generated module on the device, with its operands and compiled binaries ready to launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

from genkern.errors import LaunchError, ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.refusal import is_out_of_memory
from genkern.kernels.source import load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.concurrent_calls import counters_left, fault_of_timed
from genkern.profiling.checking.verdict import Subject, WorkBuffer
from genkern.runtime.launch.cached_call import CachedBinaries, CachedCall
from genkern.runtime.launch.launcher import Launches
from genkern.runtime.launch.parameters import ALIGNMENT, Layout
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.timing.session import Session

Call = Callable[[int], None]
# Further copies would not make B colder, and each needs host memory for its launch arguments.
_MAX_COPIES = 512
# Minimum size of workspace and counters: 16 bytes, also for kernels that need none.
_LEAST_ELEMENTS = 4
_OFF_ALIGNMENT = f"operands are not aligned to {ALIGNMENT} bytes"


def rotating_copies(bytes_per_copy: int, rotating_mb: float) -> int:
    """Return the number of copies, 1 to 512, that together have at least `rotating_mb` MiB (tune_gemm's rule)."""
    return max(1, min(_MAX_COPIES, -(-int(rotating_mb * 2**20) // bytes_per_copy))) if rotating_mb else 1


@dataclass(frozen=True)
class Launchable:
    """A config that can be launched.

    name: the config's name
    binaries: folders of its binaries in the cache
    plan: launch plan as JSON; configs may share one
    run_time: run-time arguments that the plan leaves to the config, by name
    codes: digests of the machine code that the binaries must have
    """

    name: str
    binaries: tuple[str, ...]
    plan: str
    run_time: Mapping[str, int] = field(default_factory=dict)
    codes: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Launchable:
        """Build it from a request; a request that names the vendor library has no plan."""
        binaries, codes = tuple(request["binaries"]), tuple(request.get("codes", ()))
        return cls(request["config"], binaries, request.get("plan", ""), request.get("run_time", {}), codes)

    @classmethod
    def of_unit(cls, request: Mapping[str, Any]) -> list[Launchable]:
        """Return the configs of a screening request.

        They share binaries and plan; each has its own run-time arguments.
        """
        names, binaries, plan = request["configs"], tuple(request["binaries"]), request.get("plan", "")
        run_times = request.get("run_times") or [{}] * len(names)
        codes = tuple(request.get("codes", ()))
        return [cls(name, binaries, plan, given, codes) for name, given in zip(names, run_times, strict=True)]


class LaunchPreparer(Protocol):
    """Prepares the launches of a call for operands in any layout that its kernels support (CachedCall)."""

    @property
    def operands(self) -> tuple[str, ...]: ...
    def prepared(self, layouts: Mapping[str, Layout]) -> Launches: ...
    def addresses(self, tensors: Mapping[str, Any]) -> tuple[int, ...]: ...


class SharedWorkspace:
    """Workspace and counters for all configs, as large as the largest needed so far."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._tensors: dict[str, Any] = {}

    def for_plan(self, plan: LaunchPlan, known: Mapping[str, int]) -> dict[str, Any]:
        """Return the "workspace" and the zeroed "counters" for the plan, given the values that its expressions need."""
        import torch

        elements, counters = plan.workspace_elements(known)
        dtype = getattr(torch, DTYPES[plan.workspace_dtype].torch)
        # Only a larger buffer replaces a buffer.
        if self._size("workspace") < max(elements, _LEAST_ELEMENTS):
            self._tensors["workspace"] = torch.empty(max(elements, _LEAST_ELEMENTS), dtype=dtype, device=self._device)
        if self._size("counters") < max(counters, _LEAST_ELEMENTS):
            self._tensors["counters"] = torch.zeros(
                max(counters, _LEAST_ELEMENTS), dtype=torch.int32, device=self._device
            )
        return dict(self._tensors)

    def _size(self, name: str) -> int:
        return int(self._tensors[name].numel()) if name in self._tensors else 0


class LoadedGemm:
    """Operands on the current device, `copies` copies of the rotating ones (the weights), and launchers for configs.

    A call takes the number of the copy to use, so that successive calls find it cold in the cache. Configs are launched
    like users' calls (genkern.runtime.launch), whatever language their kernels are written in.
    """

    def __init__(self, session: Session, device: str = "cuda", binaries: CachedBinaries | None = None) -> None:
        self.session = session
        self.module = load_module(session.module_path)
        self._binaries = binaries or _binaries(session.arch)
        self.gpu = self._binaries.gpu
        self.units = self.gpu.identity.compute_units
        operands = get_op(session.problem.op).operands(session.problem)
        self._dtypes = {operand.name: operand.dtype for operand in operands}
        self.operands = self.module.make_operands(device, session.seed, session.init_type)
        rotating = {name: self.operands[name] for name, operand in self.module.OPERANDS.items() if operand.rotates}
        bytes_per_copy = sum(x.numel() * x.element_size() for x in rotating.values())
        self.copies = rotating_copies(bytes_per_copy, session.budget.rotating_mb)
        self._weights = [rotating]
        for _ in range(self.copies - 1):
            # clone() of a transposed matrix keeps its strides.
            self._weights.append({name: x.clone() for name, x in rotating.items()})
        self._workspace = SharedWorkspace(device)
        # All counters that calls may have been bound to, and whether the last bound call uses counters.
        self._counters: dict[int, Any] = {}
        self._counts = False

    def bind(self, launchable: Launchable) -> Call:
        """Return a function that launches one call of the config, by its plan, on the current stream.

        Raises LaunchError if a binary cannot be loaded, and InputError for an invalid plan.
        """
        plan, known = self._plan_of(launchable)
        return self.bound(self._call(launchable, plan, known), plan, known)

    def bound(self, call: LaunchPreparer, plan: LaunchPlan, known: Mapping[str, int]) -> Call:
        """Return a function that launches `call` by `plan`; `known` has the values that the plan's expressions need."""
        tensors = {**self.operands, **self._workspace.for_plan(plan, known)}
        self._counters[id(tensors["counters"])] = tensors["counters"]
        self._counts = plan.workspace_elements(known)[1] > 0
        # All copies have the same layout.
        launches = call.prepared(self.layouts(call.operands, tensors))
        stream = self.gpu.stream
        addresses: dict[int, tuple[int, ...]] = {}

        def launch(copy: int) -> None:
            copy %= self.copies
            if copy not in addresses:
                addresses[copy] = call.addresses({**tensors, **self._weights[copy]})
            if not launches.launch(stream(), addresses[copy]):
                raise LaunchError(_OFF_ALIGNMENT)

        return launch

    def subject(self, launchable: Launchable) -> Subject:
        """Return the config's binaries as the subject of a check, which provides operands and workspace."""
        plan, known = self._plan_of(launchable)
        return self.subject_of(self._call(launchable, plan, known), plan, known)

    def _call(self, launchable: Launchable, plan: LaunchPlan, known: Mapping[str, int]) -> CachedCall:
        return self._binaries.call(launchable.binaries, plan, self._dtypes, known, launchable.codes)

    def subject_of(self, call: LaunchPreparer, plan: LaunchPlan, known: Mapping[str, int]) -> Subject:
        """Return `call` as the subject of a check; `known` has the values that the plan's expressions need."""
        import torch

        workspace, counters = plan.workspace_elements(known)
        dtype = getattr(torch, DTYPES[plan.workspace_dtype].torch)
        buffers = (
            WorkBuffer("workspace", max(workspace, _LEAST_ELEMENTS), dtype, used=workspace > 0),
            WorkBuffer("counters", max(counters, _LEAST_ELEMENTS), torch.int32, zero=True, used=counters > 0),
        )

        def launch(operands: dict[str, Any]) -> None:
            tensors = {**self.operands, **operands}
            launches = call.prepared(self.layouts(call.operands, tensors))
            if not launches.launch(self.gpu.stream(), call.addresses(tensors)):
                raise LaunchError(_OFF_ALIGNMENT)

        def refuses(operands: dict[str, Any]) -> str:
            try:
                call.prepared(self.layouts(call.operands, {**self.operands, **operands}))
            except ResultsError as error:
                return str(error)
            return ""

        return Subject(launch, buffers, refuses)

    def left_in_counters(self) -> str:
        """Return a message if the config that was bound last left a counter nonzero, or "".

        Zeroes such a counter. All launches must have ended.
        """
        return counters_left(self._counters.values()) if self._counts else ""

    def faults_of_timed(
        self, calls: Mapping[str, tuple[Call, Callable[[], object]]], copy: int, tell: Callable[[dict[str, Any]], None]
    ) -> dict[str, str]:
        """Return a message by name for each config whose timed launches leave a wrong result.

        C must equal the C of a single call, and all counters must be zero afterwards.

        calls: for each config its call, and a function that launches it as timed; both use `copy` last
        copy: number of the copy of the weights
        tell: sends {"running": NAME} before each config

        If there is no memory to compare C, that config has no entry; the check proves separately that C is right.
        """
        faults: dict[str, str] = {}
        for name, (call, timed) in calls.items():
            tell({"running": name})
            alone = partial(call, copy)
            try:
                message = fault_of_timed(self.operands["c"], self._counters.values(), alone, timed)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                continue
            if message:
                faults[name] = message
        return faults

    def _plan_of(self, launchable: Launchable) -> tuple[LaunchPlan, dict[str, int]]:
        """Return the plan and the values that its expressions need."""
        return _read_plan(launchable.plan, tuple(launchable.run_time)), {"units": self.units, **launchable.run_time}

    def layouts(self, names: Iterable[str], tensors: Mapping[str, Any]) -> dict[str, Layout]:
        """Return the layouts of these tensors. Raises ResultsError for rows that are not contiguous."""
        declared = self.module.OPERANDS
        return {
            name: Layout.of(
                tensors[name].shape, tensors[name].stride(), declared[name].row_major, tensors[name].element_size()
            )
            for name in names
        }

    def operands_of(self, copy: int) -> dict[str, Any]:
        """Return all operands, with this copy of the rotating ones."""
        return {**self.operands, **self._weights[copy]}

    def vendor(self) -> Call:
        """Return the vendor library's call on the same operands."""
        operands = [self.operands_of(copy) for copy in range(self.copies)]

        def call(copy: int) -> None:
            self.module.vendor(operands[copy % self.copies])

        return call


@lru_cache(maxsize=4096)
def _read_plan(text: str, run_time: tuple[str, ...]) -> LaunchPlan:
    """Parse a plan with these open run-time arguments; cached because many configs share one. Raises InputError.

    Parameters of user-defined families are unknown here, since this process does not read their files.
    """
    return LaunchPlan.from_json(text, run_time)


@lru_cache(maxsize=1)
def _binaries(arch: str) -> CachedBinaries:
    """Return the loader of binaries on this process's one device, shared by successive sessions."""
    backend, _, warp_size = triton_target(gpu_for_arch(arch))
    return CachedBinaries(TorchGpu(0), backend, warp_size)
