"""LoadedGemm: one generated module on the device, with its operands and the farm's binaries ready to launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from genkern.farm.cache import read_spec
from genkern.gemm.dtypes import DTYPES, dtype_of
from genkern.kernels.argument import (
    Argument,
    Copied,
    Counters,
    Descriptor,
    Integer,
    Leading,
    Pointer,
    Stride,
    passed,
)
from genkern.kernels.expression import evaluate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.lowering import gluon_layout
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.kernels.source import ast_source, load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Subject, WorkBuffer
from genkern.profiling.cuda.native_binary import NativeBinary
from genkern.timing.session import Session

Call = Callable[[int], None]
# Operands, workspace and counters by name, to a launch on them.
Bind = Callable[[Mapping[str, Any]], Callable[[], None]]
# More copies than this no longer make B colder, and each costs host memory for its launch arguments.
_MAX_COPIES = 512
# Of a workspace and of counters: 16 bytes where a kernel needs none.
_LEAST_ELEMENTS = 4


def rotating_copies(bytes_per_copy: int, rotating_mb: float) -> int:
    """How many copies together exceed `rotating_mb` MiB (tune_gemm's rule, rounded up); at least 1."""
    return max(1, min(_MAX_COPIES, -(-int(rotating_mb * 2**20) // bytes_per_copy))) if rotating_mb else 1


@dataclass(frozen=True)
class Launchable:
    """A config that can be launched: its name, folders of its binaries in the cache, the launch plan that it shares
    with others, as JSON, and what that leaves to it, by name.
    """

    name: str
    binaries: tuple[str, ...]
    plan: str
    run_time: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Launchable:
        """As a request says it; the vendor library's name comes without a plan."""
        return cls(request["config"], tuple(request["binaries"]), request.get("plan", ""), request.get("run_time", {}))


class SharedWorkspace:
    """Workspace and counters for all configs, as large as the largest needed so far."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._tensors: dict[str, Any] = {}

    def for_plan(self, plan: LaunchPlan, known: Mapping[str, int]) -> dict[str, Any]:
        """The "workspace" and the "counters", which are zero, for the plan where so many "units" are known."""
        import torch

        elements, counters = plan.workspace_elements(known)
        dtype = getattr(torch, DTYPES[plan.workspace_dtype].torch)
        # What is larger stays; what is new replaces the smaller.
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
    """Operands on the current device, `copies` of those that rotate (the weights), and launchers for configs.

    A call takes the number of the copy to use, so that successive calls find it cold in the cache.
    """

    def __init__(self, session: Session) -> None:
        import torch

        self.session = session
        self.module = load_module(session.module_path)
        self.units = torch.cuda.get_device_properties(0).multi_processor_count
        self._known = {"units": self.units}
        self.operands = self.module.make_operands("cuda", session.seed, session.init_type)
        rotating = {name: self.operands[name] for name, operand in self.module.OPERANDS.items() if operand.rotates}
        bytes_per_copy = sum(x.numel() * x.element_size() for x in rotating.values())
        self.copies = rotating_copies(bytes_per_copy, session.budget.rotating_mb)
        self._weights = [rotating]
        for _ in range(self.copies - 1):
            # clone() of a transposed matrix keeps its strides.
            self._weights.append({name: x.clone() for name, x in rotating.items()})
        self._workspace = SharedWorkspace("cuda")

    def bind(self, launchable: Launchable) -> Call:
        """A function that launches one call of the config, by its plan.

        Raises whatever Triton raises when a binary cannot be loaded, and InputError for a plan that is none.
        """
        plan, known = plan_of(launchable.plan), {**self._known, **launchable.run_time}
        launches = self._loaded(launchable, plan, known)
        tensors = {**self.operands, **self._workspace.for_plan(plan, known)}
        bound: dict[int, list[Callable[[], None]]] = {}

        def call(copy: int) -> None:
            copy %= self.copies
            if copy not in bound:
                given = {**tensors, **self._weights[copy]}
                bound[copy] = [bind(given) for bind in launches]
            for launch in bound[copy]:
                launch()

        return call

    def subject(self, launchable: Launchable) -> Subject:
        """The config's binaries as the subject of a check, on operands and a workspace that it is given."""
        import torch

        plan, known = plan_of(launchable.plan), {**self._known, **launchable.run_time}
        launches = self._loaded(launchable, plan, known)
        workspace, counters = plan.workspace_elements(known)
        dtype = getattr(torch, DTYPES[plan.workspace_dtype].torch)
        buffers = (
            WorkBuffer("workspace", max(workspace, _LEAST_ELEMENTS), dtype),
            WorkBuffer("counters", max(counters, _LEAST_ELEMENTS), torch.int32, zero=True),
        )

        def launch_all(operands: dict[str, Any]) -> None:
            given = {**self.operands, **operands}
            for bind in launches:
                bind(given)()

        return Subject(launch_all, buffers)

    def _loaded(self, launchable: Launchable, plan: LaunchPlan, known: Mapping[str, int]) -> list[Bind]:
        """The launches of a call, in order, each for whatever operands it is bound to."""
        return [
            self._load(path, launch, known) for path, launch in zip(launchable.binaries, plan.launches, strict=True)
        ]

    def _load(self, path: str, launch: PlannedLaunch, known: Mapping[str, int]) -> Bind:
        spec = _spec(path)
        if spec.language == "triton":
            kernel = load_binary(self.module, path)
            programs = launch.programs(known)
            cluster, constants = launch.cluster, tuple(value for _, value in spec.constants)
            return lambda given: _bound_launch(
                kernel, programs, cluster, (*arguments_of(launch, given, known), *constants)
            )
        operands = {operand.name: operand for operand in get_op(self.session.problem.op).operands(self.session.problem)}
        binary = NativeBinary(path, launch, operands)
        return lambda given: binary.bound(given, known, _current_stream)

    def operands_of(self, copy: int) -> dict[str, Any]:
        """All operands, of those that rotate this copy."""
        return {**self.operands, **self._weights[copy]}

    def vendor(self) -> Call:
        """The vendor library's call on the same operands."""
        operands = [self.operands_of(copy) for copy in range(self.copies)]

        def call(copy: int) -> None:
            self.module.vendor(operands[copy % self.copies])

        return call


def arguments_of(launch: PlannedLaunch, tensors: Mapping[str, Any], known: Mapping[str, int]) -> tuple[Any, ...]:
    """What Triton's launcher takes before the constants, in order: tensors, descriptors and numbers.

    `tensors` are the operands by name, and the "workspace" and the "counters" where the plan has them. `known` has what
    its numbers hang on: "units", and what the config sets at run time.
    """
    return tuple(_given(argument, tensors, known) for argument in passed(launch.arguments))


def _given(argument: Argument, tensors: Mapping[str, Any], known: Mapping[str, int]) -> Any:
    if isinstance(argument, Pointer):
        return tensors[argument.operand]
    if isinstance(argument, Copied):
        matrix = tensors[argument.operand]
        return _descriptor(argument, _copy_of(argument, matrix, tensors["workspace"], known))
    if isinstance(argument, Descriptor):
        return _descriptor(argument, tensors[argument.operand])
    if isinstance(argument, Integer):
        return evaluate(argument.value, known)
    if isinstance(argument, Leading):
        # As A, B and C lie (check_operands in generated modules), the other dimension's is 1.
        return max(tensors[argument.operand].stride()[-2:])
    if isinstance(argument, Stride):
        return tensors[argument.operand].stride(0)
    return tensors["counters" if isinstance(argument, Counters) else "workspace"]


def _copy_of(argument: Copied, matrix: Any, workspace: Any, known: Mapping[str, int]) -> Any:
    """The operand's copy in the workspace, as a matrix that lies as the operand does."""
    first, pitch = evaluate(argument.first, known), evaluate(argument.pitch, known)
    strides = (1, pitch) if argument.transposed else (pitch, 1)
    return workspace.view(matrix.dtype)[first:].as_strided(matrix.shape, strides)


def _descriptor(argument: Descriptor, tensor: Any) -> Any:
    matrix = tensor.mT if argument.transposed else tensor
    if matrix.dim() > 2:
        # Not of a matrix: a view of a single row that is padded loses the row's pitch.
        matrix = matrix.view(-1, matrix.shape[-1])
    outer, inner = (evaluate(size, {}) for size in argument.box)
    if not argument.swizzled:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(matrix, [outer, inner])
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    layout = gluon_layout(dtype_of(tensor.dtype).triton, (outer, inner))
    return GluonDescriptor.from_tensor(matrix, [outer, inner], layout)


@lru_cache(maxsize=4096)
def _spec(path: str) -> KernelSpec:
    """Of a cache entry: asked for each config, of which many share one."""
    return read_spec(path)


@lru_cache(maxsize=4096)
def plan_of(text: str) -> LaunchPlan:
    """The plan that JSON says: many configs share one. Raises InputError for what is none."""
    return LaunchPlan.from_json(text)


def _current_stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


_kernels: dict[str, Any] = {}


def load_binary(module: Any, path: str) -> Any:
    """Triton's CompiledKernel of one cache entry, loaded on the device; kept for the life of the process."""
    if path not in _kernels:
        from triton.compiler import CompiledKernel

        folder = Path(path)
        files = {file.name: str(file) for file in folder.glob("kernel.*")}
        kernel = CompiledKernel(ast_source(module, read_spec(folder)), files, folder.name)
        _ = kernel.run  # loads the binary, and raises here when it does not fit the device
        _kernels[path] = kernel
    return _kernels[path]


def _bound_launch(
    kernel: Any, grid: tuple[int, int, int], cluster: int, arguments: Sequence[Any]
) -> Callable[[], None]:
    from triton import knobs
    from triton.runtime import driver

    run, function = kernel.run, kernel.function
    # Compiled as a kernel of single programs, launched in clusters, as in_clusters of a generated module has it.
    warps, _, *rest = kernel.packed_metadata
    metadata = (warps, cluster, *rest)
    device = driver.active.get_current_device()
    get_stream = driver.active.get_current_stream
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook

    def launch_once() -> None:
        run(*grid, get_stream(device), function, metadata, None, enter, leave, *arguments)

    return launch_once
