"""`Argument`: one parameter of a kernel, and the value that a launch passes for it.

The kernel's header, its compile signature and its launch are derived from one ordered list of arguments. Numbers and
boxes may be expressions of a config's parameters (genkern.kernels.contract.expression). `expanded` evaluates them for a
config and replaces a `Descriptors` by one descriptor per parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.kernels.contract.expression import Expression, Value, evaluate, fold, name
from genkern.kernels.contract.gluon_tile import WIDEST, parts_of

# Name, in the boxes of `Descriptors`, for the number of columns of a part.
WIDTH = name("WIDTH")
# Placeholder value of a `Constant` for the part of the config's name that is compiled in.
BINARY = name("BINARY")


# Largest divisor that a kernel is promised. No vector load is wider than 16 bytes, and no type is smaller than one
# byte.
MOST_PROMISED = 16


def alignment_of(number: int) -> int:
    """Return the largest power of two that divides `number`, at most MOST_PROMISED."""
    return gcd(number, MOST_PROMISED)


@dataclass(frozen=True)
class Pointer:
    """Address of the operand's first element. The kernel is compiled for multiples of 16 bytes."""

    name: str
    operand: str


@dataclass(frozen=True)
class Descriptor:
    """TMA descriptor of an operand as it is stored. For a batch, one descriptor covers all matrices, without gaps.

    name: the parameter's name.
    operand: the operand's name.
    box: shape of a copy in elements, the contiguous dimension last.
    transposed: True if the operand is stored as its transpose.
    swizzled: True if a box lies in shared memory as wgmma reads it (Gluon's NVMMASharedLayout).
    """

    name: str
    operand: str
    box: tuple[Value, Value]
    transposed: bool
    swizzled: bool = False


@dataclass(frozen=True)
class Copied(Descriptor):
    """TMA descriptor of the operand's copy, which an earlier launch of the same call leaves in the workspace.

    first: offset of the copy from the workspace's address, in elements of the operand.
    pitch: elements from one row of the copy to the next. The rows are as long as the operand's.
    """

    first: Value = 0
    pitch: Value = 0


@dataclass(frozen=True)
class Map:
    """A bare TMA descriptor of 128 bytes, without the sizes and strides that Triton adds. Otherwise as `Descriptor`.

    swizzle: value of CUtensorMapSwizzle for the layout of a box in shared memory (0: none, 3: 128 bytes).
    """

    name: str
    operand: str
    box: tuple[Value, Value]
    transposed: bool
    swizzle: int = 0


@dataclass(frozen=True)
class Descriptors:
    """Several descriptors of one operand, one for each part of a tile's width.

    each: the descriptor of one part. Its box may use WIDTH, the columns of the part; its name gets a number appended.
    count: number of parameters.
    width: columns that are divided into parts by `parts_of`.
    owners: number of programs of a cluster that share the columns.
    most: largest number of columns in a part.
    """

    each: Descriptor
    count: int
    width: Value
    owners: int = 1
    most: Value = WIDEST

    @property
    def name(self) -> str:
        return self.each.name


@dataclass(frozen=True)
class Integer:
    """A 32-bit number. The kernel relies on a multiple of `multiple_of`: 1, 2, 4, 8 or 16."""

    name: str
    value: Value
    multiple_of: int = 1


@dataclass(frozen=True)
class Leading:
    """Leading dimension of an operand: elements from one stored row to the next, in 32 bits.

    The kernel relies on a multiple of `multiple_of`: 1, 2, 4, 8 or 16.
    """

    name: str
    operand: str
    multiple_of: int = 1


@dataclass(frozen=True)
class Stride:
    """Elements from one matrix of a batched operand to the next, in 32 bits.

    The kernel relies on a multiple of `multiple_of`: 1, 2, 4, 8 or 16.
    """

    name: str
    operand: str
    multiple_of: int = 1


@dataclass(frozen=True)
class Workspace:
    """Address of the workspace, with elements of type `dtype` (the accumulator's)."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Counters:
    """Address of the int32 counters, which are zero before and after each call."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A compile-time constant. Until `expanded` replaces it, `value` may be an expression or a text's name (BINARY)."""

    name: str
    value: Value | str


# After `expanded`, only an Integer's value and a copy's place may still be expressions: of the number of units, of M
# and of run-time parameters.
Argument = Pointer | Descriptor | Map | Descriptors | Integer | Leading | Stride | Workspace | Counters | Constant


@dataclass(frozen=True)
class Parameter:
    """One parameter in a kernel's header, as text for Triton (`tl`) and for Gluon (`gl`)."""

    name: str
    constant: bool

    @property
    def tl(self) -> str:
        return self.name + ": tl.constexpr" * self.constant

    @property
    def gl(self) -> str:
        return self.name + ": gl.constexpr" * self.constant


def parameters_of(arguments: Iterable[Argument]) -> Iterator[Parameter]:
    """Yield the header's parameters in order."""
    for argument in arguments:
        if isinstance(argument, Descriptors):
            yield from (Parameter(f"{argument.name}_{number}", False) for number in range(argument.count))
        else:
            yield Parameter(argument.name, isinstance(argument, Constant))


def expanded(arguments: Iterable[Argument], known: Mapping[str, Value], words: Mapping[str, str]) -> Iterator[Argument]:
    """Yield one argument per parameter, in order, with names replaced by their values.

    `known` must contain every number that boxes and constants name. `words` maps the names whose values are texts, such
    as BINARY, to these texts.
    """
    for argument in arguments:
        if isinstance(argument, Descriptors):
            each = argument.each
            parts = parts_of(evaluate(argument.width, known), argument.owners, evaluate(argument.most, known))
            for number, (_, _, columns) in enumerate(parts):
                box = _box(each, {**known, "WIDTH": columns})
                yield _placed(replace(each, name=f"{each.name}_{number}", box=box), known)
        elif isinstance(argument, Descriptor):
            yield _placed(replace(argument, box=_box(argument, known)), known)
        elif isinstance(argument, Map):
            yield replace(argument, box=_box(argument, known))
        elif isinstance(argument, Integer):
            yield replace(argument, value=fold(argument.value, known))
        elif isinstance(argument, Constant) and isinstance(argument.value, Expression):
            word = words.get(argument.value.name)
            yield replace(argument, value=evaluate(argument.value, known) if word is None else word)
        else:
            yield argument


def _box(descriptor: Descriptor | Map, known: Mapping[str, Value]) -> tuple[int, int]:
    outer, inner = descriptor.box
    return evaluate(outer, known), evaluate(inner, known)


def _placed(descriptor: Descriptor, known: Mapping[str, Value]) -> Descriptor:
    if not isinstance(descriptor, Copied):
        return descriptor
    return replace(descriptor, first=fold(descriptor.first, known), pitch=fold(descriptor.pitch, known))


def triton_type(argument: Argument, operands: Mapping[str, Operand]) -> str:
    """Return Triton's type name for an expanded argument that is not a constant."""
    if isinstance(argument, Pointer):
        return f"*{DTYPES[operands[argument.operand].dtype].triton}"
    if isinstance(argument, Descriptor):
        outer, inner = argument.box
        return f"tensordesc<{DTYPES[operands[argument.operand].dtype].triton}[{outer}, {inner}]>"
    if isinstance(argument, Map):
        outer, inner = argument.box
        return f"tensormap<{DTYPES[operands[argument.operand].dtype].triton}[{outer}, {inner}], {argument.swizzle}>"
    if isinstance(argument, Workspace):
        return f"*{DTYPES[argument.dtype].triton}"
    return "*i32" if isinstance(argument, Counters) else "i32"


def promised_divisor(argument: Argument) -> int:
    """Return the divisor (1, 2, 4, 8 or 16) that the kernel is compiled for: of an address in bytes, or of a number."""
    if isinstance(argument, (Integer, Leading, Stride)):
        return argument.multiple_of
    return MOST_PROMISED if isinstance(argument, (Pointer, Workspace, Counters)) else 1


def launch_arguments(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Return the arguments that a launch passes, which are all except constants."""
    return tuple(argument for argument in arguments if not isinstance(argument, Constant))


def constants_of(arguments: Iterable[Argument]) -> tuple[tuple[str, int | str], ...]:
    """Return names and values of the constants among expanded arguments."""
    constants = (argument for argument in arguments if isinstance(argument, Constant))
    return tuple((each.name, each.value) for each in constants if not isinstance(each.value, Expression))
