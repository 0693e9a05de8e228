"""fused_moe: the two products of a mixture of experts, for M tokens that go to `top_k` experts each.

gate_up: A is the tokens [M, K], B is [experts, K, 2 N] with gate before up. C [M * top_k, N] is activation(A @ gate)
    times A @ up, with the rows in the order of experts.
down: A is [M * top_k, K] with the rows in that order, B is [experts, K, N]. C [M, N] has for each token the sum of its
    rows' products. Each product is multiplied by its routing weight and rounded to C's type; a second kernel forms the
    sums in float32.

`ends` [experts] says where an expert's rows end, and `slots` [M * top_k] to which token each row belongs
(genkern.ops.groups). Kernels pad the last tile of each expert to BLOCK_SIZE_M themselves: no row is copied, and the
same order of rows serves both products and every tile height.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from genkern.gemm.columns import Refusals
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.operand import Operand
from genkern.gemm.problem import INT32, GemmProblem
from genkern.ops import grouped_gemm
from genkern.ops.accumulate import accumulate_field
from genkern.ops.fields import number, own_values, word
from genkern.ops.groups import Groups
from genkern.ops.op import Op

GATES = ("silu", "gelu", "relu")
_MOST_TOP_K = 32
# Largest relative distance between neighbouring numbers of C's type.
_SPACING = {"bf16": 2**-7, "fp16": 2**-10, "fp32": 2**-23}
# A sum of n products of normal deviates stays within 6 standard deviations, 6 sqrt(n), and the magnitudes of the
# products add up to 0.64 n. The ratio is below _WITHIN / sqrt(n).
_WITHIN = 10.0
# Bound on the sums of up in exact rounds, which reach some thousands. It multiplies the error of an activation.
_LARGEST_UP = 4096.0
_FEW_PRODUCTS = 1024


@dataclass(frozen=True)
class Moe:
    """The format's own fields: stage, experts, scales, how synthetic tokens are routed, and how sums are formed."""

    stage: str = word("down", "gate_up", help="fused_moe: the second product with the sum over experts, or the first")
    experts: int = number(1, 1, grouped_gemm.MOST_GROUPS, help="fused_moe: number of experts")
    top_k: int = number(1, 1, _MOST_TOP_K, help="fused_moe: experts per token")
    scales: str = word(
        *grouped_gemm.SCALES, help="scales of 8-bit operands: one for A and one per weight, per row, or per block"
    )
    routing: str = word(
        "balanced", "skewed", help="how synthetic rows are divided among groups: evenly, or as 1 / rank"
    )
    routing_seed: int = number(0, 0, 2**20, help="seed for dividing synthetic rows among groups")
    accumulate: str = accumulate_field()


def own_of(problem: GemmProblem) -> Moe:
    """Return the problem's own fields."""
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
    # In the order of slots, as the router returns them.
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
        return "experts have no bias in this format"
    if own.stage == "gate_up" and problem.activation not in GATES:
        return f"a gate needs an activation: {', '.join(GATES)}"
    if own.stage == "down" and problem.activation != "none":
        return "stage down has no activation: stage gate_up has it"
    if problem.M * own.top_k >= INT32:
        return "more rows than 32 bits count"
    types = grouped_gemm.refuse_types(problem, own.scales, arch)
    return types or _groups(problem).refusal(problem.M)


def _error_beside(problem: GemmProblem) -> tuple[float, float, float]:
    """A product of two sums has the errors of both. Rounding rows before they are summed adds a rounding error."""
    if own_of(problem).stage == "gate_up":
        return 2.0, 0.0, _LARGEST_UP
    rounded = _SPACING[problem.dtype_c] * min(1.0, _WITHIN / math.sqrt(min(problem.K, _FEW_PRODUCTS)))
    return 1.0, rounded, 1.0


def _legal(problem: GemmProblem, configs: ConfigTable) -> Refusals:
    yield from grouped_gemm.legal_blocks(problem, own_of(problem).scales, configs)


OP = Op(
    name="fused_moe",
    folder="fused_moe",
    input_types=grouped_gemm.OP.input_types,
    default_dtypes=grouped_gemm.OP.default_dtypes,
    refuse=_refuse,
    accumulator=grouped_gemm.accumulator,
    operands=_operands,
    # Twice the limit: C is a product of two sums, or a sum of rounded rows.
    worst_row_limit=lambda problem: 2 * grouped_gemm.worst_row_limit(problem),
    fields=Moe,
    no_vendor=lambda problem: "the library has no product of gathered rows, and none that adds rows up",
    legal=_legal,
    shared_scale=lambda problem: grouped_gemm.shared_scale(problem, own_of(problem).scales),
    groups=_groups,
    promotes=True,
    error_beside=_error_beside,
    by_rows=True,
)
