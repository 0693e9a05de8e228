"""grouped_gemm: rows in groups, each of which is multiplied by a weight of its own, B [groups, K, N].

contiguous (capacity 0): in A [M, K] and C [M, N] the rows of each group follow the rows of the group before. `ends`
    [groups] says where each group ends, as for torch._grouped_mm.
masked (capacity above 0): each group has memory for `capacity` rows, so that A is [groups * capacity, K]. `counts`
    [groups] says how many of them exist, as in DeepGEMM's masked layout. M is the expected number of rows in all groups
    together; the counts of a call may add up to another number. Rows of C beyond a group's count are not written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from genkern.gemm.columns import Refusals
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import a8w8, a16w16
from genkern.ops.accumulate import accumulate_field, refuse_full
from genkern.ops.fields import number, own_values, word
from genkern.ops.groups import Groups
from genkern.ops.op import Op

# With scales of blocks: elements of a row of A, and rows and columns of a weight, that share a scale.
BLOCK = 128
MOST_GROUPS = 1024
SCALES = ("per_tensor", "per_token", "blocks")
_MOST_ROWS = 2**20


@dataclass(frozen=True)
class Grouped:
    """The format's own fields: groups, scales, how synthetic rows are divided among groups, and how sums are formed."""

    groups: int = number(1, 1, MOST_GROUPS, help="grouped_gemm: number of groups, each with a weight")
    capacity: int = number(
        0, 0, _MOST_ROWS, help="grouped_gemm: rows for which each group has memory (masked); 0: contiguous groups"
    )
    scales: str = word(
        *SCALES,
        help="scales of 8-bit operands: one for A and one per weight, per row, or per block",
    )
    routing: str = word(
        "balanced", "skewed", help="how synthetic rows are divided among groups: evenly, or as 1 / rank"
    )
    routing_seed: int = number(0, 0, 2**20, help="seed for dividing synthetic rows among groups")
    accumulate: str = accumulate_field()


def weights(problem: GemmProblem, count: int, columns: int) -> Operand:
    """Return operand B [count, K, columns], of which timing rotates copies."""
    shape = (count, problem.K, columns)
    return Operand("b", "weight", shape, problem.dtype_b, problem.row_major_b, rotates=True)


def scales_of(problem: GemmProblem, scales: str, rows: int, count: int, columns: int) -> tuple[Operand, ...]:
    """Return the scales of A [rows, K] and of `count` weights [K, columns]; empty for 16-bit operands.

    Scales of A's blocks are column-major, so that the scales of a tile are contiguous.
    """
    if DTYPES[problem.dtype_a].size_bytes > 1:
        return ()
    along_k, blocks = -(-problem.K // BLOCK), -(-columns // BLOCK)
    of_a, of_b = {
        "per_tensor": ((1,), (count, 1, 1)),
        "per_token": ((rows, 1), (count, 1, columns)),
        "blocks": ((rows, along_k), (count, blocks, along_k)),
    }[scales]
    in_step = scales == "blocks"
    return (
        Operand("scale_a", "scale", of_a, "fp32", row_major=not in_step, scales="a", in_step=in_step),
        Operand("scale_b", "scale", of_b, "fp32", scales="b", in_step=in_step),
    )


def refuse_types(problem: GemmProblem, scales: str, arch: str) -> str:
    """Return why grouped products cannot have these types and scales, or ""."""
    if reason := refuse_full(problem, in_blocks=scales == "blocks"):
        return reason
    # The formats asked below do not have this format's fields.
    problem = replace(problem, own=())
    if DTYPES[problem.dtype_a].size_bytes > 1 and problem.dtype_a == problem.dtype_b:
        if scales != SCALES[0]:
            return "16-bit operands have no scales"
        return a16w16.OP.refuse(problem, arch)
    if scales == "blocks" and problem.dtype_a == "int8":
        return "int8 has no scales of blocks here: use fp8"
    return a8w8.OP.refuse(problem, arch)


def accumulator(problem: GemmProblem) -> str:
    """Return "int32" for int8 operands, else "fp32"."""
    return "int32" if problem.dtype_a == "int8" else "fp32"


def worst_row_limit(problem: GemmProblem) -> float:
    """Return the limit of the plain format with these types."""
    plain: Op = (a16w16 if DTYPES[problem.dtype_a].size_bytes > 1 else a8w8).OP
    return plain.worst_row_limit(replace(problem, own=()))


def legal_blocks(problem: GemmProblem, scales: str, configs: ConfigTable) -> Refusals:
    """Refuse configs of which a step would need more than one scale."""
    if scales == "blocks" and DTYPES[problem.dtype_a].size_bytes == 1:
        yield (
            BLOCK % configs.BLOCK_SIZE_K != 0,
            f"BLOCK_SIZE_K must divide the {BLOCK} elements along K that have a common scale",
        )


def shared_scale(problem: GemmProblem, scales: str) -> tuple[int, int, int]:
    """See `Op.shared_scale`."""
    return (1, BLOCK, BLOCK) if scales == "blocks" else (1, 1, 1)


def _own(problem: GemmProblem) -> Grouped:
    return own_values(Grouped, problem)


def _groups(problem: GemmProblem) -> Groups:
    own = _own(problem)
    return Groups(own.groups, capacity=own.capacity, skewed=own.routing == "skewed", seed=own.routing_seed)


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    own, groups = _own(problem), _groups(problem)
    rows = groups.rows(problem.M)
    return (
        Operand("a", "activation", (rows, problem.K), problem.dtype_a, problem.row_major_a),
        weights(problem, own.groups, problem.N),
        Operand("c", "output", (rows, problem.N), problem.dtype_c),
        *groups.operands(problem.M),
        *scales_of(problem, own.scales, rows, own.groups, problem.N),
    )


def _refuse(problem: GemmProblem, arch: str) -> str:
    if problem.bias:
        return "rows in groups have no bias"
    return refuse_types(problem, _own(problem).scales, arch) or _groups(problem).refusal(problem.M)


def _no_vendor(problem: GemmProblem) -> str:
    own = _own(problem)
    if own.capacity:
        return "the library has no product of rows with gaps between groups"
    if (problem.dtype_a, problem.dtype_b, problem.dtype_c) != ("bf16", "bf16", "bf16"):
        return "the library's grouped product takes bf16 only"
    if problem.row_major_b or problem.K % 8 or problem.N % 8:
        return (
            "torch._grouped_mm needs weights that are contiguous along K, and rows that start at multiples of 16 bytes"
        )
    return ""


def _legal(problem: GemmProblem, configs: ConfigTable) -> Refusals:
    yield from legal_blocks(problem, _own(problem).scales, configs)


OP = Op(
    name="grouped_gemm",
    folder="grouped_gemm",
    input_types=(*a16w16.OP.input_types, *a8w8.OP.input_types),
    default_dtypes=a16w16.OP.default_dtypes,
    refuse=_refuse,
    accumulator=accumulator,
    operands=_operands,
    worst_row_limit=worst_row_limit,
    fields=Grouped,
    no_vendor=_no_vendor,
    legal=_legal,
    shared_scale=lambda problem: shared_scale(problem, _own(problem).scales),
    groups=_groups,
    promotes=True,
    by_rows=True,
)
