"""Product: a GEMM as kernels see it, and copies of operands that some of them multiply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from genkern.gemm.gpus import capabilities_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import Argument, Copied, Descriptor, Leading, Pointer, alignment_of
from genkern.kernels.expression import Expression, Value, cdiv
from genkern.ops.groups import Groups
from genkern.ops.op import Op, groups_of


@dataclass(frozen=True)
class Copy:
    """An operand's copy in the workspace, as it is stored: `rows` of `columns` elements, `pitch` apart, the first one
    `first` elements behind the workspace's address.
    """

    operand: str
    rows: Expression
    columns: Expression
    pitch: Expression
    first: Value


@dataclass(frozen=True)
class Product:
    """A GEMM as kernels see it: `operands` are A, B, C and the others in the order in which kernels take them.

    `accumulator` is "fp32" or "int32".
    `starts_early`: as the function of that name says of the architecture. Descriptors are of `copies` where they are.
    """

    problem: GemmProblem
    operands: tuple[Operand, ...]
    accumulator: str
    starts_early: bool
    copies: tuple[Copy, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Operand]:
        """The operands by their names."""
        return {operand.name: operand for operand in self.operands}

    @cached_property
    def groups(self) -> Groups | None:
        """How rows go to weights, where there are many."""
        return groups_of(self.problem)

    @cached_property
    def extra(self) -> tuple[Argument, ...]:
        """What a kernel that does all of the product takes besides A, B and C."""
        return _pointers(self.operands[3:])

    @cached_property
    def in_step(self) -> tuple[Argument, ...]:
        """What a kernel that leaves partial sums takes besides A and B."""
        return _pointers(operand for operand in self.operands[3:] if operand.in_step)

    @cached_property
    def at_end(self) -> tuple[Argument, ...]:
        """What a kernel that makes C of partial sums takes besides C."""
        return _pointers(operand for operand in self.operands[3:] if not operand.in_step)

    def leading(self, name: str, operand: str) -> Leading:
        """The operand's leading dimension; codegen uses what divides it without gaps between rows."""
        return Leading(name, operand, alignment_of(self.by_name[operand].storage_shape[-1]))

    def descriptor(self, name: str, operand: str, box: tuple[Value, Value], *, swizzled: bool = False) -> Descriptor:
        """A descriptor for boxes of these rows and columns of the operand, however it is stored, and packed."""
        facts = self.by_name[operand]
        outer, inner = box if facts.row_major else (box[1], box[0])
        packed = cdiv(inner, facts.packed) if facts.packed > 1 else inner
        said = name, operand, (outer, packed), not facts.row_major, swizzled
        copy = next((copy for copy in self.copies if copy.operand == operand), None)
        return Descriptor(*said) if copy is None else Copied(*said, copy.first, copy.pitch)


def _pointers(operands: Iterable[Operand]) -> tuple[Argument, ...]:
    return tuple(Pointer(f"{operand.name}_ptr", operand.name) for operand in operands)


@lru_cache(maxsize=256)
def product_of(problem: GemmProblem, op: Op, arch: str) -> Product:
    """What kernels see of a problem on `arch`."""
    return Product(problem, op.operands(problem), op.accumulator(problem), starts_early(arch))


def starts_early(arch: str) -> bool:
    """Whether a kernel may be on the device, and wait there, before the one that it depends on has ended.

    CUDA's programmatic dependent launch. Triton's option is launch_pdl.
    """
    return capabilities_of(arch).dependent_launches
