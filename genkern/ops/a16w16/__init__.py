"""a16w16: A and B in fp16, bf16 or fp32, without scales. C has any of these types.

fp32 operands are multiplied as fp32, or with `precision` tf32 as tf32 on devices that have it. If one operand is fp16
and the other bf16, they are multiplied as tf32, which holds every number of both types (on AMD as xf32 if available,
else as fp32).
"""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.gpus import capabilities_of
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import word
from genkern.ops.op import Op, bias_of, matrices

_TYPES = ("fp16", "bf16", "fp32")
_MIXED = {"fp16", "bf16"}
# A correct result is within a few roundings of its own type: 4 x 2^-8 for bf16, 4 x 2^-11 for fp16. fp32 outputs of
# 16-bit inputs differ only by the order of the sums.
_WORST_ROW = {"bf16": 2**-6, "fp16": 2**-9, "fp32": 1e-3}


@dataclass(frozen=True)
class A16W16:
    """The format's own field: how float32 is multiplied."""

    precision: str = word("ieee", "tf32", help="a16w16 in fp32: multiply all bits, or the 11 significant bits of tf32")


def _as_tf32(problem: GemmProblem) -> bool:
    # batched_a16w16, which lacks this field, uses the same functions for refusal and library.
    return dict(problem.own).get("precision") == "tf32"


def _refuse(problem: GemmProblem, arch: str) -> str:
    for name in ("dtype_a", "dtype_b", "dtype_c"):
        if getattr(problem, name) not in _TYPES:
            return f"{name} = {getattr(problem, name)} is not one of {', '.join(_TYPES)} (8-bit types: --op a8w8)"
    if problem.dtype_a != problem.dtype_b and {problem.dtype_a, problem.dtype_b} != _MIXED:
        return f"dtype_a = {problem.dtype_a} and dtype_b = {problem.dtype_b} must be the same, or fp16 and bf16"
    if _as_tf32(problem) and problem.dtype_a != "fp32":
        return f"precision = tf32 is for operands in fp32, not {problem.dtype_a}"
    if _as_tf32(problem) and not capabilities_of(arch).tf32:
        return f"precision = tf32: {arch} does not multiply tf32"
    return ""


def _no_vendor(problem: GemmProblem) -> str:
    return "" if problem.dtype_a == problem.dtype_b else "the library has no product of fp16 and bf16"


OP = Op(
    name="a16w16",
    folder="a16w16",
    input_types=_TYPES,
    by_types=True,
    fields=A16W16,
    default_dtypes=lambda arch: ("bf16", "bf16", "bf16"),
    refuse=_refuse,
    accumulator=lambda problem: "fp32",
    operands=lambda problem: (*matrices(problem), *bias_of(problem)),
    worst_row_limit=lambda problem: _WORST_ROW[problem.dtype_c],
    no_vendor=_no_vendor,
    as_tf32=_as_tf32,
    plain_finish=True,
    by_rows=True,
)
