"""`Product`: a GEMM as kernels see it, and the copies of operands that some kernels multiply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from genkern.gemm.gpus import capabilities_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Argument, Copied, Descriptor, Leading, Pointer, alignment_of
from genkern.kernels.contract.expression import Expression, Value, cdiv
from genkern.ops.groups import Groups
from genkern.ops.op import Op, groups_of


@dataclass(frozen=True)
class Copy:
    """A copy of an operand in the workspace, in the operand's own layout.

    operand: the operand's name.
    rows: number of rows.
    columns: elements in a row.
    pitch: elements from the start of one row to the start of the next.
    first: offset of the first element from the workspace's address, in elements.
    """

    operand: str
    rows: Expression
    columns: Expression
    pitch: Expression
    first: Value


@dataclass(frozen=True)
class Product:
    """A GEMM as kernels see it.

    problem: the GEMM.
    operands: A, B, C and the other operands, in the order of the kernels' parameters.
    accumulator: type of the sums, "fp32" or "int32".
    starts_early: True if a kernel may start before the kernel that it depends on has ended (see the function
        `starts_early`).
    copies: copies of operands. Descriptors refer to a copy instead of the operand if there is one.
    """

    problem: GemmProblem
    operands: tuple[Operand, ...]
    accumulator: str
    starts_early: bool
    copies: tuple[Copy, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Operand]:
        """The operands by name."""
        return {operand.name: operand for operand in self.operands}

    @cached_property
    def groups(self) -> Groups | None:
        """How rows map to weights; None for a problem without groups."""
        return groups_of(self.problem)

    @cached_property
    def extra(self) -> tuple[Argument, ...]:
        """Pointers to every operand after A, B and C, for a kernel that computes the whole product."""
        return _pointers(self.operands[3:])

    @cached_property
    def in_step(self) -> tuple[Argument, ...]:
        """Pointers to further operands that the loop over K reads, for a kernel that leaves partial sums."""
        return _pointers(operand for operand in self.operands[3:] if operand.in_step)

    @cached_property
    def at_end(self) -> tuple[Argument, ...]:
        """Pointers to further operands that only the epilogue reads, for a kernel that computes C from partial sums."""
        return _pointers(operand for operand in self.operands[3:] if not operand.in_step)

    def leading(self, name: str, operand: str) -> Leading:
        """Return the argument for the operand's leading dimension, with the divisor that a gapless row guarantees."""
        return Leading(name, operand, alignment_of(self.by_name[operand].storage_shape[-1]))

    def descriptor(self, name: str, operand: str, box: tuple[Value, Value], *, swizzled: bool = False) -> Descriptor:
        """Return a TMA descriptor argument for the operand, or for its copy if there is one.

        `box` is (rows, columns) of the operand in logical order; the descriptor's box follows the storage order and
        counts packed elements.
        """
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
    """Return the product for a problem of format `op` on architecture `arch`."""
    return Product(problem, op.operands(problem), op.accumulator(problem), starts_early(arch))


def starts_early(arch: str) -> bool:
    """Whether a kernel may be resident and wait on the device before the kernel that it depends on has ended.

    This is CUDA's programmatic dependent launch; Triton's option is launch_pdl.
    """
    return capabilities_of(arch).dependent_launches
