"""a8w8: A and B both int8 or both fp8, with float32 scales. C is fp16, bf16 or fp32.

A scale is for a whole operand, or for one row of A or one column of B.
"""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import accumulate_field, refuse_full
from genkern.ops.fields import own_values, word
from genkern.ops.float8 import fp8_refusal, has_fp8
from genkern.ops.op import Op, bias_of, matrices

INPUT_TYPES = tuple(name for name, dtype in DTYPES.items() if dtype.size_bytes == 1)
_OUT = ("fp16", "bf16", "fp32")
# The tensor cores of sm_90 keep about 14 bits when they add fp8 products (DeepSeek-V3 report, section 3.3.2), so fp8
# sums have a relative error of up to about 2^-8 in addition to the rounding of the output.
_WORST_ROW = {"bf16": 2**-6, "fp16": 2**-7, "fp32": 2**-7}


@dataclass(frozen=True)
class A8W8:
    """The format's own fields: which elements share a scale, and how sums are formed."""

    scales: str = word(
        "per_tensor",
        "per_token",
        help="a8w8: one scale for all of A and one for B, or one per row of A (token) and column of B (channel)",
    )
    accumulate: str = accumulate_field()


def _refuse(problem: GemmProblem, arch: str) -> str:
    a, b = DTYPES[problem.dtype_a], DTYPES[problem.dtype_b]
    if not ((a.is_float8 and b.is_float8) or (a is b and a.is_integer and a.bits == 8)):
        return f"dtype_a = {a.name} and dtype_b = {b.name} must both be int8 or both fp8"
    if problem.dtype_c not in _OUT:
        return f"dtype_c = {problem.dtype_c} is not one of {', '.join(_OUT)}"
    return refuse_full(problem) or fp8_refusal(a, arch) or fp8_refusal(b, arch)


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    per_token = own_values(A8W8, problem).scales == "per_token"
    of_a, of_b = ((problem.M, 1), (1, problem.N)) if per_token else ((1,), (1,))
    scales = (
        Operand("scale_a", "scale", of_a, "fp32", scales="a"),
        Operand("scale_b", "scale", of_b, "fp32", scales="b"),
    )
    return (*matrices(problem), *scales, *bias_of(problem))


OP = Op(
    name="a8w8",
    folder="a8w8",
    input_types=INPUT_TYPES,
    by_types=True,
    fields=A8W8,
    default_dtypes=lambda arch: ("fp8", "fp8", "bf16") if has_fp8(arch) else ("int8", "int8", "bf16"),
    refuse=_refuse,
    accumulator=lambda problem: "int32" if DTYPES[problem.dtype_a].is_integer else "fp32",
    operands=_operands,
    worst_row_limit=lambda problem: _WORST_ROW[problem.dtype_c],
    plain_finish=True,
    by_rows=True,
)
