"""A GEMM problem as cuBLASLt and hipBLASLt compute it: matrices, layouts, epilogue. Pure functions.

The library is column-major: a row-major C [M, N] of genkern is C^T [N, M] for the library, so it computes C^T = B^T
A^T. Its A is genkern's B, its B genkern's A; it transposes a matrix exactly if that is row-major in genkern. Bias and
scales change sides with their matrices. Tests compute what these descriptions say in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import is_full, multiplies_float8
from genkern.ops.op import get_op
from genkern.runtime.backends import lt_api as api
from genkern.runtime.backends.lt_api import Dialect

# Types with two bits of mantissa. The libraries do not multiply two of them.
_COARSE = ("fp8e5m2", "fp8e5m2fnuz")


class NotCovered(api.LtError):
    """The library does not compute the whole problem; the message says why."""


@dataclass(frozen=True)
class Layout:
    """A column-major matrix in memory: element (i, j) is `i + j * leading` elements after its start."""

    dtype: int
    rows: int
    columns: int
    leading: int


@dataclass(frozen=True)
class Operation:
    """D = epilogue(op(A) op(B)) in the library's names: its A is genkern's `b`, its B genkern's `a`.

    compute, scale_type: types of the sums and of alpha and beta.
    transposed_a, transposed_b: True if the library transposes the matrix.
    a, b, d: layouts of the matrices.
    epilogue: the library's number of the epilogue.
    scales: scale modes of its A and B; None if there are no scales.
    fast_accum: True if fp8 sums are not promoted to float32 on the way, like torch._scaled_mm's use_fast_accum.
    """

    compute: int
    scale_type: int
    transposed_a: bool
    transposed_b: bool
    a: Layout
    b: Layout
    d: Layout
    epilogue: int = api.EPILOGUE_DEFAULT
    scales: tuple[int, int] | None = None
    fast_accum: bool = False

    @property
    def has_bias(self) -> bool:
        return bool(self.epilogue & api.EPILOGUE_BIAS)

    @property
    def types(self) -> tuple[int, ...]:
        """Compute and scale type, then the types of A, B, C and D."""
        return self.compute, self.scale_type, self.a.dtype, self.b.dtype, self.d.dtype, self.d.dtype

    @property
    def reductions(self) -> int:
        """Mask of the reduction schemes that add the partial sums of split-K in the type in which they are computed.

        With the other schemes (in place, or in the output's type) bf16 sums would be rounded between the splits. That
        result differs from the problem's, and the check on exact inputs finds it wrong. All schemes are allowed if the
        output has 32 bits.
        """
        if self.d.dtype in (api.R_32F, api.R_32I):
            return api.REDUCTION_INPLACE | api.REDUCTION_COMPUTE_TYPE | api.REDUCTION_OUTPUT_TYPE
        return api.REDUCTION_COMPUTE_TYPE


def operation_of(problem: GemmProblem, dialect: Dialect, leading: Mapping[str, int] | None = None) -> Operation:
    """Return the problem as one call of the library.

    `leading` has the leading dimensions of "a", "b" and "c" in elements; without it the matrices are contiguous. Raises
    NotCovered.
    """
    if reason := refusal(problem, dialect):
        raise NotCovered(reason)
    given = leading or {}
    of_a, of_b, of_d = (
        # Row-major storage: the library is column-major, so rows and columns are exchanged.
        Layout(_code(dtype, dialect), columns, rows, given.get(name, columns))
        for name, dtype, (rows, columns) in (
            ("a", problem.dtype_a, _stored(problem.M, problem.K, problem.row_major_a)),
            ("b", problem.dtype_b, _stored(problem.K, problem.N, problem.row_major_b)),
            ("c", problem.dtype_c, (problem.M, problem.N)),
        )
    )
    integer = DTYPES[problem.dtype_a].is_integer
    of_floats = "tf32" if get_op(problem.op).as_tf32(problem) else "fp32"
    return Operation(
        compute=dialect.compute["int32" if integer else of_floats],
        scale_type=api.R_32I if integer else api.R_32F,
        transposed_a=not problem.row_major_b,
        transposed_b=not problem.row_major_a,
        a=of_b,
        b=of_a,
        d=of_d,
        epilogue=_epilogue(problem),
        scales=_scale_modes(problem),
        fast_accum=_fast_accum(problem),
    )


def _code(dtype: str, dialect: Dialect) -> int:
    code = code_of(dtype, dialect)
    assert code is not None
    return code


def code_of(dtype: str, dialect: Dialect) -> int | None:
    """Return the library's number of a type; None if it has none. HIP's numbers are CUDA's, plus fnuz 8-bit floats."""
    row = DTYPES[dtype]
    return row.hip if dialect.fnuz and row.hip is not None else row.cuda


def refusal(problem: GemmProblem, dialect: Dialect) -> str:
    """Return why the library does not compute the whole problem in one call; "" if it does."""
    op = get_op(problem.op)
    if reason := op.no_vendor(problem):
        return reason
    if op.batched:
        return "batched products are not enumerated"
    if op.groups is not None:
        return "it has no grouped product"
    a, b, c = problem.dtype_a, problem.dtype_b, problem.dtype_c
    if c not in DTYPES[a].outputs or any(code_of(each, dialect) is None for each in (a, b)):
        more = "; it cannot scale or convert integer sums" if DTYPES[a].is_integer else ""
        return f"the library has no product of {a} and {b} to {c}{more}"
    if problem.activation not in ("none", "relu"):
        return f"the library has no {problem.activation} epilogue" + (
            " (its gelu is the tanh form)" if problem.activation == "gelu" else ""
        )
    if DTYPES[a].is_float8:
        return _fp8_refusal(problem, dialect)
    if a != b:
        return f"the library has no product of {a} and {b}"
    if DTYPES[a].is_integer and (problem.bias or problem.activation != "none" or _scale_modes(problem) is not None):
        return "the library's integer product has no scales and no epilogue"
    return ""


def _fp8_refusal(problem: GemmProblem, dialect: Dialect) -> str:
    coarse = problem.dtype_a in _COARSE and problem.dtype_b in _COARSE
    if coarse or not DTYPES[problem.dtype_b].is_float8:
        return f"the library has no product of {problem.dtype_a} and {problem.dtype_b}"
    if not problem.row_major_a or problem.row_major_b:
        return "the library multiplies fp8 with K contiguous in both operands only"
    if problem.bias and problem.dtype_c == "fp32":
        return "the library's bias of an fp8 product with fp32 output is bf16"
    modes = _scale_modes(problem)
    if modes is None or (api.SCALE_BLK128X128 in modes and not dialect.block_scales):
        return "the library has no scales of these operands"
    return ""


def _fast_accum(problem: GemmProblem) -> bool:
    """Return True if sums with few bits are acceptable; False with scales per block, whose sums are promoted."""
    blocks = any(operand.in_step for operand in get_op(problem.op).operands(problem))
    return multiplies_float8(problem) and not is_full(problem) and not blocks


def _stored(rows: int, columns: int, row_major: bool) -> tuple[int, int]:
    """Return rows and columns of the matrix in memory, as stored row by row."""
    return (rows, columns) if row_major else (columns, rows)


def _epilogue(problem: GemmProblem) -> int:
    bias = api.EPILOGUE_BIAS if problem.bias else 0
    relu = api.EPILOGUE_RELU if problem.activation == "relu" else 0
    return bias | relu or api.EPILOGUE_DEFAULT


def _scale_modes(problem: GemmProblem) -> tuple[int, int] | None:
    """Return the modes of the library's A and B (genkern's b and a) from the shapes of the scales."""
    shapes = {operand.scales: operand.shape for operand in get_op(problem.op).operands(problem) if operand.scales}
    modes = {
        (): None,
        ((1,), (1,)): (api.SCALE_SCALAR, api.SCALE_SCALAR),
        ((problem.M, 1), (1, problem.N)): (api.SCALE_OUTER_VEC, api.SCALE_OUTER_VEC),
        ((problem.M, -(-problem.K // 128)), (-(-problem.N // 128), -(-problem.K // 128))): (
            api.SCALE_BLK128X128,
            api.SCALE_VEC128,
        ),
    }
    return modes.get(tuple(shapes[name] for name in ("a", "b") if name in shapes))
