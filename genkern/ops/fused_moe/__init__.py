"""fused_moe: the two products of a mixture of experts: M tokens' rows by the weights of the `top_k` experts of each.

`gate_up`: of tokens A [M, K] and B [experts, K, 2 N], gate before up, C [M * top_k, N] is activation(A @ gate) times A
@ up, its rows in the order of experts. `down`: of A [M * top_k, K], rows so ordered, and B [experts, K, N], C [M, N]
is for each token the sum of its rows' products, each multiplied by its routing weight and rounded to C's type; the sum
is made in float32, by a second kernel. `ends` [experts] says where an expert's rows end, `slots` [M * top_k] which
token's each row is (genkern.ops.groups). Kernels pad tiles to BLOCK_SIZE_M themselves, where an expert's rows end: no
row is copied, and one order of rows serves both products and tiles of any height.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from genkern.gemm.operand import Operand
from genkern.gemm.problem import INT32, GemmProblem
from genkern.ops import grouped_gemm
from genkern.ops.accumulate import accumulate_field
from genkern.ops.fields import number, own_values, word
from genkern.ops.groups import Groups
from genkern.ops.op import Op

GATES = ("silu", "gelu", "relu")
_MOST_TOP_K = 32
# What neighbouring numbers of C's type differ by, relative to them, at most.
_SPACING = {"bf16": 2**-7, "fp16": 2**-10, "fp32": 2**-23}
# A sum of n products of deviates stays within 6 standard deviations, 6 sqrt(n); their magnitudes add up to 0.64 n.
_WITHIN = 10.0
# Of up's sums in exact rounds, which go up to some thousands: what the error of an activation is multiplied by.
_LARGEST_UP = 4096.0
_FEW_PRODUCTS = 1024


@dataclass(frozen=True)
class Moe:
    """Which of the two products it is, how many experts, how made-up tokens are sent to them, how sums are made."""

    stage: str = word("down", "gate_up", help="fused_moe: the second product with the sum over experts, or the first")
    experts: int = number(1, 1, grouped_gemm.MOST_GROUPS, help="fused_moe: experts")
    top_k: int = number(1, 1, _MOST_TOP_K, help="fused_moe: experts that a token goes to")
    scales: str = word(
        *grouped_gemm.SCALES, help="of 8-bit operands: one for A and one for each weight, for rows, or for blocks"
    )
    routing: str = word("balanced", "skewed", help="how made-up rows are shared among groups: evenly, or as 1 / rank")
    routing_seed: int = number(0, 0, 2**20, help="of how made-up rows are shared")
    accumulate: str = accumulate_field()


def own_of(problem: GemmProblem) -> Moe:
    """The problem's own fields."""
    return own_values(Moe, problem)


def _groups(problem: GemmProblem) -> Groups:
    own = own_of(problem)
    gathers = own.stage == "gate_up"
    return Groups(
        own.experts,
        own.top_k,
        gathered=gathers,
        summed=not gathers,
        skewed=own.routing == "skewed",
        seed=own.routing_seed,
    )


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    own, M, N, K = own_of(problem), problem.M, problem.N, problem.K
    rows, index = M * own.top_k, _groups(problem).operands(problem.M)
    gates = own.stage == "gate_up"
    rows_a, rows_c, columns = (M, rows, 2 * N) if gates else (rows, M, N)
    scales = grouped_gemm.scales_of(problem, own.scales, rows_a, own.experts, columns)
    # By slot, as the router gives them.
    weights = () if gates else (Operand("routing_weights", "scale", (rows,), "fp32"),)
    return (
        Operand("a", "activation", (rows_a, K), problem.dtype_a, problem.row_major_a),
        grouped_gemm.weights(problem, own.experts, columns),
        Operand("c", "output", (rows_c, N), problem.dtype_c),
        *index,
        *scales,
        *weights,
    )


def _refuse(problem: GemmProblem, arch: str) -> str:
    own = own_of(problem)
    if problem.bias:
        return "experts have no bias here"
    if own.stage == "gate_up" and problem.activation not in GATES:
        return f"a gate needs an activation: {', '.join(GATES)}"
    if own.stage == "down" and problem.activation != "none":
        return "the sum over experts has no activation: that is of stage gate_up"
    if problem.M * own.top_k >= INT32:
        return "more rows than 32 bits count"
    types = grouped_gemm.refuse_types(problem, own.scales, arch)
    return types or _groups(problem).refusal(problem.M)


def _error_beside(problem: GemmProblem) -> tuple[float, float, float]:
    """A product of two sums is off by both's errors; a row that is rounded before the sum, by a number's spacing."""
    if own_of(problem).stage == "gate_up":
        return 2.0, 0.0, _LARGEST_UP
    rounded = _SPACING[problem.dtype_c] * min(1.0, _WITHIN / math.sqrt(min(problem.K, _FEW_PRODUCTS)))
    return 1.0, rounded, 1.0


OP = Op(
    name="fused_moe",
    folder="fused_moe",
    input_types=grouped_gemm.OP.input_types,
    default_dtypes=grouped_gemm.OP.default_dtypes,
    refuse=_refuse,
    accumulator=grouped_gemm.accumulator,
    operands=_operands,
    # Of two sums' product, or of rows that were rounded before.
    worst_row_limit=lambda problem: 2 * grouped_gemm.worst_row_limit(problem),
    fields=Moe,
    no_vendor=lambda problem: "the library has no product of gathered rows, and none that adds rows up",
    legal=lambda problem, config: grouped_gemm.legal_blocks(problem, own_of(problem).scales, config),
    shared_scale=lambda problem: grouped_gemm.shared_scale(problem, own_of(problem).scales),
    groups=_groups,
    promotes=True,
    error_beside=_error_beside,
    by_rows=True,
)
