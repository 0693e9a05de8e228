"""batched_a16w16: a batch of products of one size, A [batch, M, K] by B [batch, K, N], in the types of a16w16.

Each operand has a stride from one matrix to the next in addition to its leading dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.operand import Operand
from genkern.gemm.problem import INT32, GemmProblem
from genkern.ops import a16w16
from genkern.ops.fields import number
from genkern.ops.op import Op, in_batch, matrices

# Most programs along the third dimension of a grid.
_MOST = 65_535


@dataclass(frozen=True)
class Batch:
    """The field of batched formats."""

    batch_size: int = number(1, 1, _MOST, help="batched formats: number of products of this size")


def refuse_batch(problem: GemmProblem) -> str:
    """Return why kernels cannot compute the products of a problem as a batch, or ""."""
    if problem.bias:
        return "a batch of products has no bias"
    if max(operand.elements // problem.batch for operand in in_batch(problem, matrices(problem))) >= INT32:
        return "a matrix of the batch has more elements than 32 bits count"
    return ""


def _refuse(problem: GemmProblem, arch: str) -> str:
    return a16w16.OP.refuse(problem, arch) or refuse_batch(problem)


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    return in_batch(problem, matrices(problem))


OP = Op(
    name="batched_a16w16",
    folder="batched_a16w16",
    input_types=a16w16.OP.input_types,
    default_dtypes=a16w16.OP.default_dtypes,
    refuse=_refuse,
    accumulator=a16w16.OP.accumulator,
    operands=_operands,
    worst_row_limit=a16w16.OP.worst_row_limit,
    fields=Batch,
    plain_finish=True,
    no_vendor=a16w16.OP.no_vendor,
    by_rows=True,
)
