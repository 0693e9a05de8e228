"""Argument: one parameter of a kernel and what it is given; of the ordered list, header, signature and launch are made.

Numbers and boxes may hang on a config's fields (genkern.kernels.expression). What stands for several parameters
(Descriptors) is `expanded` once the config is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.kernels.expression import Expression, Value, evaluate, fold, name
from genkern.kernels.families.gluon_tile import WIDEST, parts_of

# In the boxes of Descriptors: how many columns the part has.
WIDTH = name("WIDTH")
# The compile-time part of the config's name, a text, as the value of a Constant.
BINARY = name("BINARY")


# No vector load is wider, in bytes, and no type smaller than one.
MOST_PROMISED = 16


def alignment_of(number: int) -> int:
    """The largest power of two up to MOST_PROMISED that divides the number: what a kernel can be promised of it."""
    return gcd(number, MOST_PROMISED)


@dataclass(frozen=True)
class Pointer:
    """Address of the operand's first element; the kernel relies on its being a multiple of 16 bytes."""

    name: str
    operand: str


@dataclass(frozen=True)
class Descriptor:
    """TMA descriptor of the operand as it is stored, for boxes of `box` elements, the contiguous dimension last.

    Of a batch it is of all matrices as one, each below the one before, without a gap.
    `transposed`: the operand is stored as its transpose. `swizzled`: a box lies in shared memory as wgmma reads it
    (Gluon's NVMMASharedLayout).
    """

    name: str
    operand: str
    box: tuple[Value, Value]
    transposed: bool
    swizzled: bool = False


@dataclass(frozen=True)
class Copied(Descriptor):
    """TMA descriptor as in Descriptor, of the operand's copy that an earlier launch has left in the workspace.

    Rows of the copy are `pitch` elements apart and as long as the operand's; it begins `first` elements behind the
    workspace's address. Elements are the operand's.
    """

    first: Value = 0
    pitch: Value = 0


@dataclass(frozen=True)
class Map:
    """TMA descriptor as in Descriptor, by itself: the 128 bytes, without the sizes and strides that Triton adds.

    `swizzle` is CUtensorMapSwizzle: how a box lies in shared memory, by so many bytes (0: none, 3: 128).
    """

    name: str
    operand: str
    box: tuple[Value, Value]
    transposed: bool
    swizzle: int = 0


@dataclass(frozen=True)
class Descriptors:
    """`count` parameters, `each` with the width of another part of `width` columns as WIDTH in its box.

    The parts are those of parts_of, for so many `owners` and `most` columns. Names are that of `each` and a number.
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
    """A number of 32 bits; the kernel relies on its being a multiple of `multiple_of`: 1, 2, 4, 8 or 16."""

    name: str
    value: Value
    multiple_of: int = 1


@dataclass(frozen=True)
class Leading:
    """Leading dimension of an operand in elements, 32 bits: what lies between neighbouring rows as they are stored.

    The kernel relies on its being a multiple of `multiple_of`: 1, 2, 4, 8 or 16.
    """

    name: str
    operand: str
    multiple_of: int = 1


@dataclass(frozen=True)
class Stride:
    """Elements from one matrix of an operand in a batch to the next, 32 bits.

    The kernel relies on its being a multiple of `multiple_of`: 1, 2, 4, 8 or 16.
    """

    name: str
    operand: str
    multiple_of: int = 1


@dataclass(frozen=True)
class Workspace:
    """Address of the workspace: what a call may write, of the accumulators' type."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Counters:
    """Address of the counters (int32), which are zero before a call and after it."""

    name: str


@dataclass(frozen=True)
class Constant:
    """Known when the kernel is compiled. `value` may be the name of a word, as BINARY is, until the config is known."""

    name: str
    value: Value | str


# In what follows `expanded`, the values of Integers may hang on the number of units, and where copies lie on M.
Argument = Pointer | Descriptor | Map | Descriptors | Integer | Leading | Stride | Workspace | Counters | Constant


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel's header, as it stands there in Triton (`tl`) and in Gluon (`gl`)."""

    name: str
    constant: bool

    @property
    def tl(self) -> str:
        return self.name + ": tl.constexpr" * self.constant

    @property
    def gl(self) -> str:
        return self.name + ": gl.constexpr" * self.constant


def parameters_of(arguments: Iterable[Argument]) -> Iterator[Parameter]:
    """The header's parameters, in order."""
    for argument in arguments:
        if isinstance(argument, Descriptors):
            yield from (Parameter(f"{argument.name}_{number}", False) for number in range(argument.count))
        else:
            yield Parameter(argument.name, isinstance(argument, Constant))


def expanded(arguments: Iterable[Argument], known: Mapping[str, Value], words: Mapping[str, str]) -> Iterator[Argument]:
    """One argument for each parameter of a kernel, in order, with the values of names put in; boxes and constants have
    no names left.

    `known` are values of names that are numbers, `words` texts of names that are words, BINARY among them.
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
    """Triton's name for the type of an expanded argument that is no constant."""
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


def promised(argument: Argument) -> int:
    """What the kernel is compiled for a multiple of, 1, 2, 4, 8 or 16: an address in bytes, or a number."""
    if isinstance(argument, (Integer, Leading, Stride)):
        return argument.multiple_of
    return MOST_PROMISED if isinstance(argument, (Pointer, Workspace, Counters)) else 1


def passed(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Those that a launch passes: constants are compiled in."""
    return tuple(argument for argument in arguments if not isinstance(argument, Constant))


def constants_of(arguments: Iterable[Argument]) -> tuple[tuple[str, int | str], ...]:
    """Names and values of the constants among expanded arguments."""
    constants = (argument for argument in arguments if isinstance(argument, Constant))
    return tuple((each.name, each.value) for each in constants if not isinstance(each.value, Expression))
