"""batched_a8w8: a batch of products of one size, in the types of a8w8, with a scale per row of A and column of B.

scale_a is [batch, M, 1] and scale_b is [batch, 1, N], as in AITER's batched a8w8.
"""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import a8w8
from genkern.ops.accumulate import accumulate_field
from genkern.ops.batched_a16w16 import Batch, refuse_batch
from genkern.ops.op import Op, in_batch, matrices


@dataclass(frozen=True)
class Batch8(Batch):
    """The format's own fields: number of products, and how their sums are formed."""

    accumulate: str = accumulate_field()


def _refuse(problem: GemmProblem, arch: str) -> str:
    return a8w8.OP.refuse(problem, arch) or refuse_batch(problem)


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    scales = (
        Operand("scale_a", "scale", (problem.M, 1), "fp32", scales="a"),
        Operand("scale_b", "scale", (1, problem.N), "fp32", scales="b"),
    )
    return in_batch(problem, (*matrices(problem), *scales))


OP = Op(
    name="batched_a8w8",
    folder="batched_a8w8",
    input_types=a8w8.OP.input_types,
    default_dtypes=a8w8.OP.default_dtypes,
    refuse=_refuse,
    accumulator=a8w8.OP.accumulator,
    operands=_operands,
    worst_row_limit=a8w8.OP.worst_row_limit,
    fields=Batch8,
    plain_finish=True,
    no_vendor=lambda problem: "the library has no batch of products of 8-bit operands with scales",
    by_rows=True,
)
