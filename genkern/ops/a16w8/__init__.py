"""a16w8: 16-bit activations and 8-bit weights, int8 or fp8 (e4m3), with one scale per column of B (output channel).

Weights are converted exactly to A's type in each step over K, and the sums are multiplied by the scales at the end. The
time goes into reading the weights, which have half the bytes of 16-bit ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import own_values, word
from genkern.ops.float8 import fp8_refusal, has_fp8
from genkern.ops.op import Op, bias_of, matrices

_ACTIVATIONS = ("bf16", "fp16")
_WEIGHTS = ("int8", "fp8e4m3fn", "fp8e4m3fnuz")
_OUT = ("fp16", "bf16", "fp32")
# As for a16w16: weights are exact in A's type, and sums are float32.
_WORST_ROW = {"bf16": 2**-6, "fp16": 2**-9, "fp32": 1e-3}


@dataclass(frozen=True)
class A16W8:
    """The format's own field."""

    scale_type: str = word("fp32", "bf16", help="a16w8: type of the scales, of which each column of B has one")


def _refuse(problem: GemmProblem, arch: str) -> str:
    for name, types in (("dtype_a", _ACTIVATIONS), ("dtype_b", _WEIGHTS), ("dtype_c", _OUT)):
        if getattr(problem, name) not in types:
            return f"{name} = {getattr(problem, name)} is not one of {', '.join(types)}"
    return fp8_refusal(DTYPES[problem.dtype_b], arch)


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    scale_type = own_values(A16W8, problem).scale_type
    scale = Operand("scale_b", "scale", (1, problem.N), scale_type, rotates=True, scales="b")
    return (*matrices(problem), scale, *bias_of(problem))


OP = Op(
    name="a16w8",
    folder="a16w8",
    input_types=(*_ACTIVATIONS, *_WEIGHTS),
    default_dtypes=lambda arch: ("bf16", "fp8" if has_fp8(arch) else "int8", "bf16"),
    refuse=_refuse,
    accumulator=lambda problem: "fp32",
    operands=_operands,
    worst_row_limit=lambda problem: _WORST_ROW[problem.dtype_c],
    fields=A16W8,
    no_vendor=lambda problem: "the library has no product of 16-bit and 8-bit operands",
    in_registers=True,
    by_rows=True,
)
