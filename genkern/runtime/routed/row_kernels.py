"""RowKernel: a kernel that runs beside the products of a layer: what it is compiled with, and its launch.

Its source is templates/rows/kernels.py. A bundle holds the row kernels that its winners' layers launch, under names
that include the types. If no bundle has a kernel, PyTorch's functions do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genkern.errors import GenkernError, LaunchError, ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.kernels.contract.argument import MOST_PROMISED
from genkern.kernels.cute.source_file import sha256_of
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.plan import PlannedLaunch
from genkern.ops.op import groups_of
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import PackedBinary
from genkern.runtime.calls.context import Context
from genkern.runtime.launch.launch_shape import LaunchShape, PreparedLaunch
from genkern.runtime.launch.launcher import make_launches
from genkern.runtime.launch.parameters import ALIGNMENT, Address, Number, Parameter
from genkern.runtime.launch.prepared_call import LiveGpu, ReadyCall

# Their module, below genkern's templates.
FILE = "rows/kernels.py"
# Elements of a row that share a scale if scales are per block.
BLOCK = 128
# Blocks per program.
BLOCKS = 8
# Gated columns per program: 16 bytes per thread.
GATED_COLUMNS = 1024
# Types of ids, by PyTorch's name.
_IDS = {"torch.int32": "int32", "torch.int64": "int64"}


@dataclass(frozen=True)
class RowKernel:
    """A row kernel for certain types.

    name: its name in bundles.
    function: its name in the module.
    signature: name and Triton type of each argument, in order.
    promised: arguments that are multiples of 16 (for addresses, in bytes).
    constants: names and values of the compile-time constants, which follow the arguments.
    num_warps: warps per program.
    """

    name: str
    function: str
    signature: tuple[tuple[str, str], ...]
    promised: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int = 4

    @property
    def spec(self) -> KernelSpec:
        """What the compiler needs."""
        return KernelSpec(
            *(self.function, sha256_of(FILE), self.signature, self.constants),
            tuple((name, MOST_PROMISED) for name in self.promised),
            (("num_warps", self.num_warps), ("num_stages", 2)),
        )

    @property
    def launch(self) -> PlannedLaunch:
        """A launch as in a launch plan. Its grid is a placeholder: the call provides it."""
        return PlannedLaunch(self.function, (1, 1, 1), 1, False, ())

    @property
    def pointers(self) -> tuple[str, ...]:
        return tuple(name for name, kind in self.signature if kind.startswith("*"))


def ordering(ids: Any) -> RowKernel | None:
    """Return the kernel that orders rows by `ids` of this type; None if there is none."""
    name = _IDS.get(str(ids))
    return None if name is None else _ordering(name)


def _ordering(dtype: str) -> RowKernel:
    pointers = ("ids_ptr", f"*i{dtype[3:]}"), ("ends_ptr", "*i32"), ("slots_ptr", "*i32")
    named = tuple(pointer for pointer, _ in pointers)
    return RowKernel(f"order_{dtype}", "order_rows", (*pointers, ("rows", "i32")), named, (("BLOCK_SIZE", 1024),))


def quantizing(wide: str, narrow: str, scales: str) -> RowKernel | None:
    """Return the kernel that quantises rows with scales per row or per block; None if there is none.

    The types are genkern's names.
    """
    if not DTYPES[narrow].is_float8 or scales not in ("per_token", "blocks") or DTYPES[wide].size_bytes != 2:
        return None
    types = DTYPES[wide].triton, DTYPES[narrow].triton
    pointers = ("x_ptr", f"*{types[0]}"), ("found_ptr", f"*{types[1]}"), ("scale_ptr", "*fp32")
    promised = (*(name for name, _ in pointers), "columns")
    most = ("MOST", int(DTYPES[narrow].largest))
    name = f"quantize_{scales}_{wide}_{narrow}"
    rows, columns = ("rows", "i32"), ("columns", "i32")
    if scales == "per_token":
        return RowKernel(name, "quantize_rows", (*pointers, columns), promised, (most, ("BLOCK_SIZE", 2048)))
    constants = most, ("BLOCK", BLOCK), ("BLOCKS", BLOCKS)
    return RowKernel(name, "quantize_blocks", (*pointers, rows, columns), promised, constants)


def gating(dtype: str) -> RowKernel | None:
    """Return the kernel that computes silu(gate) * up for rows of this type; None unless that has 16 bits."""
    if DTYPES[dtype].size_bytes != 2:
        return None
    pointers = tuple((name, f"*{DTYPES[dtype].triton}") for name in ("gate_ptr", "up_ptr", "found_ptr"))
    numbers = "gate", "up", "pitch", "columns"
    promised = (*(name for name, _ in pointers), *numbers)
    signature = (*pointers, *((name, "i32") for name in numbers))
    return RowKernel(f"gate_{dtype}", "gate_rows", signature, promised, (("BLOCK_SIZE", GATED_COLUMNS),))


def needed(problem: GemmProblem) -> tuple[RowKernel, ...]:
    """Return the row kernels that a layer may launch beside this product."""
    groups = groups_of(problem)
    if problem.op == DEFAULT_OP and problem.dtype_a == problem.dtype_c:
        # It may be the product of gate and up of a gated layer (genkern.runtime.merged_layers.gated).
        gate = gating(problem.dtype_c)
        return () if gate is None else (gate,)
    if groups is None or not groups.sorted_slots:
        return ()
    scales = str(dict(problem.own).get("scales", "per_tensor"))
    narrowing = quantizing(problem.dtype_c, problem.dtype_a, scales) if problem.dtype_a != problem.dtype_c else None
    return (*map(_ordering, _IDS.values()), *([narrowing] if narrowing is not None else []))


class RowCall(ReadyCall):
    """A launch of a row kernel with a fixed grid and fixed numbers, for tensors at any addresses.

    Raises ResultsError if the binary's parameters differ from the kernel's, LaunchError if it cannot be loaded.
    """

    alignment = ALIGNMENT
    memory_bytes = 0, 0

    def __init__(
        self,
        gpu: LiveGpu,
        bundle: Bundle,
        sha256: str,
        kernel: RowKernel,
        grid: Sequence[int],
        numbers: Mapping[str, int],
    ) -> None:
        self._gpu = gpu
        binary = bundle.contents.binaries[sha256]
        parameters = _parameters(kernel, binary, numbers)
        x, y, z = (*grid, 1, 1)[:3]
        with gpu.made_current():
            image = bundle.image(sha256)
            function = gpu.driver.function(gpu.index, sha256, image, binary.symbol, binary.shared_bytes)
            launch = PreparedLaunch(LaunchShape(function, (x, y, z), binary.threads, binary.shared_bytes), parameters)
            self.body = make_launches(gpu.driver, [launch], kernel.pointers, len(kernel.pointers))

    def failure(self, status: int) -> LaunchError:
        """Return the error for a status of the driver."""
        return LaunchError(f"a launch failed: {self._gpu.driver.error_text(status)}")

    def _launched(self, addresses: tuple[int, ...]) -> bool:
        return self.body.launch(self._gpu.stream(), addresses)


def row_call(
    context: Context, op: str, device: int, kernel: RowKernel, grid: Sequence[int], numbers: Mapping[str, int]
) -> tuple[LiveGpu, RowCall] | None:
    """Return the GPU and the kernel's launch; None without a GPU, without the kernel, or if it cannot be loaded."""
    gpu = context.gpu(device)
    try:
        if gpu is None or (found := context.row_kernel(gpu, op, kernel.name)) is None:
            return None
        return gpu, RowCall(gpu, *found, kernel, grid, numbers)
    except GenkernError as error:
        context.say(kernel.name, f"{kernel.name}: {error}: PyTorch's calls serve it")
        return None


def _parameters(kernel: RowKernel, binary: PackedBinary, numbers: Mapping[str, int]) -> tuple[Parameter, ...]:
    given: list[Parameter] = [
        Address(name) if kind.startswith("*") else Number(numbers[name], 4) for name, kind in kernel.signature
    ]
    sizes = tuple(parameter.size_bytes for parameter in given)
    scratch = binary.parameter_bytes[len(sizes) :]
    if binary.symbol != kernel.function or sizes != binary.parameter_bytes[: len(sizes)] or set(scratch) - {8}:
        raise ResultsError(f"{binary.symbol} is another kernel than {kernel.name}: pack it again")
    return (*given, *(Number(0, 8) for _ in scratch))
