"""a16w4: 16-bit activations and 4-bit weights, int4 or e2m1 (MXFP4), with a scale per group along K in each column.

Weights are packed two per byte along K, the first in the low half. A weight's value is its number times its scale,
rounded to A's type, so kernel, library and reference multiply the same numbers. int4 is signed and symmetric (-8 to 7,
no zero points). MXFP4 is that of the OCP Microscaling Formats 1.0: e2m1 with one exponent (e8m0) per 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import mx
from genkern.ops.fields import number, own_values, word
from genkern.ops.op import Op, bias_of, matrices

_ACTIVATIONS = ("bf16", "fp16")
# Storage type of a byte with two weights.
_STORAGE = "int8"
_OUT = ("fp16", "bf16", "fp32")
# As for a16w16: the reference has the same weights in A's type, and sums are float32.
_WORST_ROW = {"bf16": 2**-6, "fp16": 2**-9, "fp32": 1e-3}
_GROUPS = (32, 64, 128, 256)
# Largest n such that all integers from -n to n can be stored.
_LARGEST = {"int4": 7, "mxfp4": mx.LARGEST_E2M1}


@dataclass(frozen=True)
class A16W4:
    """The format's own fields: encoding of the weights, type of the scales, and weights along K per scale."""

    weights: str = word("int4", "mxfp4", help="a16w4: encoding of the 4-bit weights")
    scale_type: str = word("fp32", "bf16", help="a16w4: the type of int4's scales")
    group: int = number(mx.GROUP, _GROUPS[0], _GROUPS[-1], help="a16w4: weights along K with a common scale")


def _refuse(problem: GemmProblem, arch: str) -> str:
    for name, types in (("dtype_a", _ACTIVATIONS), ("dtype_b", (_STORAGE,)), ("dtype_c", _OUT)):
        if getattr(problem, name) not in types:
            return f"{name} = {getattr(problem, name)} is not one of {', '.join(types)}"
    if problem.row_major_b:
        return "weights are packed along K, so they must be contiguous along K (rowMajorB: N)"
    own = own_values(A16W4, problem)
    if own.group not in _GROUPS:
        return f"group = {own.group} is not one of {', '.join(map(str, _GROUPS))}"
    if own.weights == "mxfp4" and (own.group, own.scale_type) != (mx.GROUP, "fp32"):
        return f"mxfp4 has one exponent per {mx.GROUP} weights: set neither group nor scale_type"
    return ""


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    own = own_values(A16W4, problem)
    a, b, c = matrices(problem)
    b = Operand("b", "weight", b.shape, _STORAGE, b.row_major, packed=2, rotates=True)
    stored = _STORAGE if own.weights == "mxfp4" else own.scale_type
    groups = (problem.N, -(-problem.K // own.group))
    scale = Operand("scale_b", "scale", groups, stored, rotates=True, scales="b", in_step=True)
    return (a, b, c, scale, *bias_of(problem))


def _exact_inputs(problem: GemmProblem, operand: Operand, numbers: Any, generator: Any) -> Any:
    """Return packed codes [K / 2, N] of numbers [K, N]; for scales their exponents, or the scales in their type."""
    import torch

    is_mx = own_values(A16W4, problem).weights == "mxfp4"
    if operand.role == "scale":
        if is_mx:
            return mx.exponents(numbers)
        return numbers.to(torch.bfloat16 if operand.dtype == "bf16" else torch.float32)
    numbers = numbers.mT
    if is_mx:
        codes = mx.e2m1_codes(numbers)
    else:
        # Normal deviates are doubled, to spread over all int4 values.
        whole = numbers if numbers.dtype == torch.int8 else (numbers * 2).round()
        codes = whole.clamp(-_LARGEST["int4"], _LARGEST["int4"]).long() & 15
    return mx.packed(codes).mT


OP = Op(
    name="a16w4",
    folder="a16w4",
    input_types=(*_ACTIVATIONS, _STORAGE),
    default_dtypes=lambda arch: ("bf16", _STORAGE, "bf16"),
    refuse=_refuse,
    accumulator=lambda problem: "fp32",
    operands=_operands,
    worst_row_limit=lambda problem: _WORST_ROW[problem.dtype_c],
    fields=A16W4,
    no_vendor=lambda problem: "the library has no product of 16-bit and 4-bit operands",
    shared_scale=lambda problem: (1, 1, own_values(A16W4, problem).group),
    converts_b=True,
    in_registers=True,
    exact_inputs=_exact_inputs,
    encoded=("scale_b",),
    largest_exact=lambda problem: _LARGEST[own_values(A16W4, problem).weights],
    by_rows=True,
)
