"""a4w4_blockscale: MXFP4 by MXFP4, and MXFP8 by MXFP4 or MXFP8, with a power of two per 32 elements along K.

Numbers are those of the OCP Microscaling Formats 1.0: e2m1, packed two per byte along K with the first in the low half,
or e4m3 or e5m2. The exponents are e8m0: [M, K / 32] for rows of A and [N, K / 32] for columns of B. Two e2m1 in a byte
have type int8 here. Scales are row-major, as AITER's quantisers leave them before its kernels' own shuffle. Weights are
not shuffled.
"""

from __future__ import annotations

from typing import Any

from genkern.gemm.columns import Refusals
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES, parse_dtype
from genkern.gemm.gpus import known_archs
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import mx
from genkern.ops.float8 import has_fp8
from genkern.ops.op import Op, bias_of, matrices

# Storage type of a byte with two e2m1, and of an exponent.
_STORAGE = "int8"
_FLOAT8 = ("fp8e4m3fn", "fp8e5m2")
_OUT = ("bf16", "fp16", "fp32")
# As for a16w16: the reference has the same numbers, and sums are float32.
_WORST_ROW = {"bf16": 2**-6, "fp16": 2**-9, "fp32": 1e-3}
# Smallest BLOCK_SIZE_K for e2m1: that of the instruction (PTX ISA, "tcgen05.mma", kind::mxf4). With less, Triton 3.6 to
# 3.9 fail on sm_100 and sm_120, and for some tiles on sm_90.
_E2M1_K = 64
# fp8e5m2 holds all integers up to 8.
_LARGEST_FLOAT8 = 8


def _refuse(problem: GemmProblem, arch: str) -> str:
    inputs = (_STORAGE, *_FLOAT8)
    for name, types in (("dtype_a", inputs), ("dtype_b", inputs), ("dtype_c", _OUT)):
        if getattr(problem, name) not in types:
            return f"{name} = {getattr(problem, name)} is not one of {', '.join(types)}"
    if problem.dtype_a == _STORAGE != problem.dtype_b:
        return "an A of e2m1 (int8) needs a B of e2m1: swap the types"
    if problem.row_major_b or not problem.row_major_a:
        return "elements that share an exponent must be contiguous along K (rowMajorA: T, rowMajorB: N)"
    if problem.K % mx.GROUP:
        return f"K = {problem.K} is no multiple of the {mx.GROUP} elements that share an exponent: pad it with zeros"
    lacks = arch in known_archs() and (not has_fp8(arch) or parse_dtype("fp8", arch).name not in _FLOAT8)
    if lacks and problem.dtype_a != _STORAGE:
        return f"{arch} has none of OCP's fp8 types ({', '.join(_FLOAT8)}): use e2m1 (int8), or another --arch"
    return ""


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    a, b, c = matrices(problem)
    packed_a, packed_b = (2 if dtype == _STORAGE else 1 for dtype in (problem.dtype_a, problem.dtype_b))
    a = Operand("a", "activation", a.shape, a.dtype, a.row_major, packed=packed_a)
    b = Operand("b", "weight", b.shape, b.dtype, b.row_major, packed=packed_b, rotates=True)
    groups = -(-problem.K // mx.GROUP)
    scale_a = Operand("scale_a", "scale", (problem.M, groups), _STORAGE, scales="a", in_step=True)
    scale_b = Operand("scale_b", "scale", (problem.N, groups), _STORAGE, rotates=True, scales="b", in_step=True)
    return (a, b, c, scale_a, scale_b, *bias_of(problem))


def _legal(problem: GemmProblem, configs: ConfigTable) -> Refusals:
    yield (
        configs.BLOCK_SIZE_K % mx.GROUP != 0,
        f"BLOCK_SIZE_K is no multiple of the {mx.GROUP} elements that share an exponent",
    )
    if problem.dtype_a == problem.dtype_b == _STORAGE:
        yield (
            configs.BLOCK_SIZE_K < _E2M1_K,
            f"BLOCK_SIZE_K is below the {_E2M1_K} elements along K of an instruction for e2m1",
        )


def _exact_inputs(problem: GemmProblem, operand: Operand, numbers: Any, generator: Any) -> Any:
    """Return packed codes [M, K / 2] or [K / 2, N] of numbers [M, K] or [K, N]; for scales their exponents."""
    if operand.role == "scale":
        return mx.exponents(numbers)
    if operand.row_major:
        return mx.packed(mx.e2m1_codes(numbers))
    return mx.packed(mx.e2m1_codes(numbers.mT)).mT


def _largest_exact(problem: GemmProblem) -> int:
    types = problem.dtype_a, problem.dtype_b
    return min(_LARGEST_FLOAT8 if DTYPES[dtype].is_float8 else mx.LARGEST_E2M1 for dtype in types)


OP = Op(
    name="a4w4_blockscale",
    folder="a4w4_blockscale",
    input_types=(_STORAGE, *_FLOAT8),
    default_dtypes=lambda arch: (_STORAGE, _STORAGE, "bf16"),
    refuse=_refuse,
    accumulator=lambda problem: "fp32",
    operands=_operands,
    worst_row_limit=lambda problem: _WORST_ROW[problem.dtype_c],
    no_vendor=lambda problem: "the library's products of these types take exponents in a layout of their own",
    legal=_legal,
    shared_scale=lambda problem: (1, 1, mx.GROUP),
    has_functions=True,
    exact_inputs=_exact_inputs,
    encoded=("scale_a", "scale_b"),
    largest_exact=_largest_exact,
    by_rows=True,
)
