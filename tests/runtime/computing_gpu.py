"""A GPU that is none, whose kernels are PyTorch: each reads and writes where a launch of `tiled` was told to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from recording_gpu import FakeDriver, FakeGpu, Launched
from small_bundle import row
from small_gemms import TILED
from torch._C._dynamo.eval_frame import set_eval_frame

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.kernels.contract.argument import Constant, Integer, Leading, Pointer, Stride, Workspace
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal
from genkern.kernels.plan import PlannedLaunch
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op
from genkern.packing.packer import CallToPack
from genkern.packing.rows import rows_of, with_calls
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import Contents, PackedBinary
from genkern.runtime.routed.row_kernels import GATED_COLUMNS, gating

# K's block is what two e2m1 a byte take.
CONFIG = replace(TILED, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64)


@dataclass(frozen=True)
class Kernel:
    """What a launch of `tiled` means: its arguments in order, and the problem whose layouts and types they have. It
    computes `scale` times the product: so results can say which kernel they are of.
    """

    launch: PlannedLaunch
    problem: GemmProblem
    scale: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        return sizes_of(self.launch)

    def compute(self, launched: Launched) -> None:
        op = get_op(self.problem.op)
        if op.groups is None and all(each.packed == each.together == 1 for each in op.operands(self.problem)):
            self._compute(launched.parameters)

    def _compute(self, parameters: Iterable[bytes]) -> None:
        passed = [each for each in self.launch.arguments if not isinstance(each, Constant)]
        numbers = [int.from_bytes(each, "little") for each in parameters]
        said = list(zip(passed, numbers, strict=False))
        of = {
            kind: {each.operand: n for each, n in said if isinstance(each, kind)} for kind in (Pointer, Leading, Stride)
        }
        sizes = {each.name: number for each, number in said if isinstance(each, Integer)}
        for each, number in said:
            assert not isinstance(each, (Integer, Leading, Stride)) or number % each.multiple_of == 0, (each, number)
        m, n, k = (sizes[name] for name in "MNK")
        problem = self.problem
        shapes = {
            "a": ((m, k), problem.row_major_a, problem.dtype_a),
            "b": ((k, n), problem.row_major_b, problem.dtype_b),
            "c": ((m, n), True, problem.dtype_c),
        }
        a, b, c = (
            self._matrix(of[Pointer][name], of[Leading][name], of[Stride].get(name, 0), *shapes[name])
            for name in shapes
        )
        c.copy_((a.double() @ b.double() * self.scale).to(c.dtype))

    def _matrix(self, address: int, pitch: int, step: int, shape: tuple[int, int], row_major: bool, dtype: str) -> Any:
        rows, columns = shape if row_major else shape[::-1]
        batch = self.problem.batch
        elements = (batch - 1) * step + (rows - 1) * pitch + columns
        memory = (ctypes.c_char * (elements * DTYPES[dtype].size_bytes)).from_address(address)
        flat = torch.frombuffer(memory, dtype=getattr(torch, DTYPES[dtype].torch))
        found = flat.as_strided((batch, rows, columns), (step, pitch, 1))
        return found if row_major else found.mT


class GateKernel:
    """What gate_rows computes of bf16, by PyTorch's calls."""

    kernel = gating("bf16")
    sizes = (8, 8, 8, 4, 4, 4, 4)

    def compute(self, launched: Launched) -> None:
        numbers = [int.from_bytes(each, "little") for each in launched.parameters]
        (gate_at, up_at, found_at), (gate, up, pitch, columns) = numbers[:3], numbers[3:]
        rows = launched.grid[0]
        assert launched.grid[1] * GATED_COLUMNS >= columns
        assert all(number % 16 == 0 for number in numbers)

        def matrix(address: int, pitch: int) -> Any:
            memory = (ctypes.c_char * (((rows - 1) * pitch + columns) * 2)).from_address(address)
            return torch.frombuffer(memory, dtype=torch.bfloat16).as_strided((rows, columns), (pitch, 1))

        silu = torch.nn.functional.silu(matrix(gate_at + 2 * gate, pitch))
        matrix(found_at, columns).copy_(silu * matrix(up_at + 2 * up, pitch))


@dataclass
class ComputingDriver(FakeDriver):
    """Computes what is launched, of kernels by the sha256 of their binaries; not where operands are packed or rows
    go to one of many weights."""

    kernels: Mapping[str, Kernel | GateKernel] = field(default_factory=dict)
    _by_handle: dict[int, Kernel | GateKernel] = field(default_factory=dict)

    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int:
        handle = int(sha256[:15], 16)
        self._by_handle[handle] = kernel = self.kernels[sha256]
        self._kernels[handle] = symbol, kernel.sizes
        return handle

    def _write_down(self, function: int, *asked: Any) -> int:
        # A driver has no Python that Dynamo could look at.
        traced = set_eval_frame(None)
        try:
            status = super()._write_down(function, *asked)
            if not status:
                self._by_handle[function].compute(self.launched[-1])
            return status
        finally:
            set_eval_frame(traced)


@dataclass(frozen=True)
class PlannedBundle(Bundle):
    """A bundle without binaries: its kernels are the driver's."""

    def image(self, sha256: str) -> bytes:
        return b""


def sizes_of(launch: PlannedLaunch) -> tuple[int, ...]:
    passed = [each for each in launch.arguments if not isinstance(each, Constant)]
    return tuple(8 if isinstance(each, (Pointer, Workspace)) else 4 for each in passed)


def planned(rows: list[Result]) -> tuple[Bundle, dict[str, Kernel]]:
    """A bundle of rows whose configs are of `tiled`, without binaries; and what their kernels are, by sha256."""
    kernels: dict[str, Kernel] = {}
    binaries: dict[str, PackedBinary] = {}

    def call(wanted: CallToPack) -> PackedCall:
        problem = wanted.reach.kernels_of
        plan = launch_plan(product_of(problem, get_op(problem.op), "sm_90"), wanted.config, wanted.gpu, any_m=True)
        names = []
        for launch in plan.launches:
            names.append(sha256 := f"{len(kernels) + 1:015x}".ljust(64, "0"))
            kernels[sha256] = Kernel(launch, problem)
            binaries[sha256] = PackedBinary(sha256, launch.symbol, 128, 0, sizes_of(launch))
        sums = sums_of(problem, wanted.config, "sm_90")
        return PackedCall(wanted.reach.least_m, wanted.reach.most_m, plan, tuple(names), "", sums=sums)

    packed = rows_of(rows, None, False)
    assert not packed.left_out
    winners = tuple(with_calls(each, [call(wanted) for wanted in each.wanted]) for each in packed.packed)
    return PlannedBundle("planned", Contents(winners, binaries), None), kernels  # type: ignore[arg-type]


def planned_row(problem: GemmProblem, config: Config = CONFIG, **more: object) -> Result:
    """A row that `tiled` won."""
    assert not legal(problem, config, gpu_for_arch("sm_90")), problem
    return row(problem, config, **more)


def with_gate(bundle: Bundle, kernels: dict[str, Kernel | GateKernel]) -> Bundle:
    """The bundle with the kernel of gated rows too, which is added to the driver's."""
    made = GateKernel()
    sha256 = "f" * 64
    kernels[sha256] = made
    assert made.kernel is not None
    binary = PackedBinary(sha256, made.kernel.function, 128, 0, made.sizes)
    contents = bundle.contents
    binaries = {**contents.binaries, sha256: binary}
    beside = {("sm_90", made.kernel.name): sha256}
    return replace(bundle, contents=replace(contents, binaries=binaries, row_kernels=beside))


def computing_gpu(kernels: Mapping[str, Kernel | GateKernel]) -> FakeGpu:
    gpu = FakeGpu()
    gpu.driver = ComputingDriver(kernels=kernels)
    return gpu
