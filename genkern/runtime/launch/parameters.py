"""The parameters of a binary: values for the arguments of a plan, for operands with given layouts.

Triton passes a descriptor as the tensor map, followed by the sizes (32 bits) and strides (64 bits) of the tensor. After
all arguments it passes the addresses of two scratch areas, which genkern's kernels do not use. Kernels in other
languages take only the tensor map (Map).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from genkern.errors import ResultsError
from genkern.gemm.problem import INT32
from genkern.kernels.contract.argument import (
    Argument,
    Constant,
    Copied,
    Counters,
    Descriptor,
    Integer,
    Leading,
    Map,
    Pointer,
    Stride,
    Workspace,
)
from genkern.kernels.contract.expression import evaluate
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.bundles.records import Encoding, PackedBinary

# Names of the addresses that a call passes besides its operands.
WORKSPACE, COUNTERS = "workspace", "counters"
# Alignment in bytes that TMA and vector loads require of addresses, and TMA of row pitches.
ALIGNMENT = 16
TENSOR_MAP_BYTES = 128


@dataclass(frozen=True)
class Layout:
    """How an operand is stored: rows of contiguous elements.

    rows, columns: number of rows, and of elements per row.
    pitch: elements from the start of one row to the start of the next.
    element_bytes: bytes per element.
    batch: number of matrices.
    step: elements from the start of one matrix to the start of the next.
    """

    rows: int
    columns: int
    pitch: int
    element_bytes: int
    batch: int = 1
    step: int = 0

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int], row_major: bool, element_bytes: int) -> Layout:
        """Return the layout of a matrix, of a vector (as one row) or of a batch of matrices, with strides in elements.

        Raises ResultsError if rows are not contiguous or overlap. The stride of a single row or column is ignored.
        """
        if len(shape) == 3:
            return replace(cls.of(shape[1:], strides[1:], row_major, element_bytes), batch=shape[0], step=strides[0])
        shape, strides = ((1, *shape), (0, *strides)) if len(shape) == 1 else (tuple(shape), tuple(strides))
        order = 1 if row_major else -1
        (rows, columns), (pitch, along) = shape[::order], strides[::order]
        if columns > 1 and along != 1:
            raise ResultsError(f"elements of a row are {along} elements apart, not contiguous")
        pitch = columns if rows <= 1 else pitch
        if pitch < columns:
            raise ResultsError(f"rows of {columns} elements are {pitch} elements apart")
        return cls(rows, columns, pitch, element_bytes)


@dataclass(frozen=True)
class Address:
    """The address of a tensor: an operand by its name, WORKSPACE or COUNTERS."""

    tensor: str
    size_bytes: int = 8


@dataclass(frozen=True)
class Number:
    """A number that is known when the call is prepared."""

    value: int
    size_bytes: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map of the matrix that starts `offset_bytes` after the address of `tensor`."""

    tensor: str
    encoding: Encoding
    layout: Layout
    size_bytes: int = TENSOR_MAP_BYTES
    offset_bytes: int = 0


Parameter = Address | Number | TensorMap


def parameters_of(
    launch: PlannedLaunch, binary: PackedBinary, layouts: Mapping[str, Layout], known: Mapping[str, int]
) -> tuple[Parameter, ...]:
    """Return the parameters of a launch's binary in order.

    layouts: the layout of each operand, by name.
    known: the values of the plan's variables: "units", and "M" if the plan is for any M.

    Raises ResultsError if the binary declares other parameters, or if an operand breaks an assumption of the kernel
    (`unmet`, `broken`).
    """
    encodings = list(binary.encodings)
    parameters: list[Parameter] = []
    for argument in launch.arguments:
        if isinstance(argument, (Pointer, Leading, Stride, Descriptor, Map)) and argument.operand not in layouts:
            raise ResultsError(
                f"its plan has an operand {argument.operand}, which the format no longer has: pack it again"
            )
        if reason := unmet(argument, layouts) or broken(argument, known):
            raise ResultsError(reason)
        parameters += _passed(argument, encodings, layouts, known)
    sizes = tuple(parameter.size_bytes for parameter in parameters)
    scratch = binary.parameter_bytes[len(sizes) :]
    if encodings or sizes != binary.parameter_bytes[: len(sizes)] or set(scratch) - {8}:
        raise ResultsError(
            f"{binary.symbol} takes parameters of {binary.parameter_bytes} bytes, its plan gives {sizes}"
        )
    return (*parameters, *(Number(0, 8) for _ in scratch))


def unmet(argument: Argument, layouts: Mapping[str, Layout]) -> str:
    """Return why a kernel would misread the operand of this argument, whatever its address; "" if it would not."""
    if isinstance(argument, Stride):
        step = layouts[argument.operand].step
        if step >= INT32 or step % argument.multiple_of:
            multiple = f"multiple of {argument.multiple_of} that fits 32 bits"
            return f"matrices of {argument.operand} are {step} elements apart, no {multiple}"
    if isinstance(argument, (Leading, Descriptor, Map)) and not isinstance(argument, Copied):
        layout = layouts[argument.operand]
        between, unit, multiple_of = layout.pitch * layout.element_bytes, "bytes", ALIGNMENT
        if isinstance(argument, Leading):
            between, unit, multiple_of = layout.pitch, "elements", argument.multiple_of
        if between % multiple_of:
            return f"rows of {argument.operand} are {between} {unit} apart, no multiple of {multiple_of}"
        if isinstance(argument, (Descriptor, Map)) and layout.batch > 1 and layout.step != layout.rows * layout.pitch:
            return f"matrices of {argument.operand} are not contiguous"
    return ""


def broken(argument: Argument, known: Mapping[str, int]) -> str:
    """Return why an integer argument is no multiple of the number that the kernel assumes; "" if it is.

    Such an argument is the M of a column-major A, whose rows in memory have M elements.
    """
    if isinstance(argument, Integer) and argument.multiple_of > 1:
        value = evaluate(argument.value, known)
        if value % argument.multiple_of:
            return f"{argument.name} is {value}, no multiple of {argument.multiple_of}"
    return ""


def _passed(
    argument: Argument, encodings: list[Encoding], layouts: Mapping[str, Layout], known: Mapping[str, int]
) -> Sequence[Parameter]:
    if isinstance(argument, Pointer):
        return (Address(argument.operand),)
    if isinstance(argument, Workspace):
        return (Address(WORKSPACE),)
    if isinstance(argument, Counters):
        return (Address(COUNTERS),)
    if isinstance(argument, Integer):
        value = evaluate(argument.value, known)
        if not -INT32 <= value < 2 * INT32:
            raise ResultsError(f"its plan has {argument.name} = {value}, which does not fit 32 bits")
        return (Number(value, 4),)
    if isinstance(argument, Constant):
        return ()
    assert isinstance(argument, (Leading, Stride, Descriptor, Map))
    layout = layouts[argument.operand]
    if isinstance(argument, Stride):
        return (Number(layout.step, 4),)
    if isinstance(argument, Leading):
        return (Number(layout.pitch, 4),)
    # One descriptor covers all matrices of a batch.
    layout = replace(layout, rows=layout.batch * layout.rows, batch=1)
    if not encodings:
        raise ResultsError(f"its binary has fewer descriptors than its plan ({argument.name})")
    if isinstance(argument, Copied):
        layout = replace(layout, pitch=evaluate(argument.pitch, known))
        first_bytes = evaluate(argument.first, known) * layout.element_bytes
        tensor_map = TensorMap(WORKSPACE, encodings.pop(0), layout, offset_bytes=first_bytes)
    else:
        tensor_map = TensorMap(argument.operand, encodings.pop(0), layout)
    if isinstance(argument, Map):
        return (tensor_map,)
    return (
        tensor_map,
        *(Number(size, 4) for size in (layout.rows, layout.columns)),
        *(Number(stride, 8) for stride in (layout.pitch, 1)),
    )
