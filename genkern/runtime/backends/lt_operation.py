"""A GEMM problem as cuBLASLt and hipBLASLt compute it: which matrices, how they lie, what follows. Pure.

The library is column-major: what is row-major C [M, N] to genkern is C^T [N, M] to it, so it computes
C^T = B^T A^T. Its A is genkern's B, its B genkern's A; a matrix in memory is transposed to it exactly when it is
row-major, and bias and scales change sides as their matrices do. Checked against the header by tests that compute what
these descriptions say, in NumPy.
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

# Those with two bits of mantissa, of which the libraries have no product with another.
_COARSE = ("fp8e5m2", "fp8e5m2fnuz")


class NotCovered(api.LtError):
    """The library does not compute the whole problem; the message says why not."""


@dataclass(frozen=True)
class Layout:
    """A column-major matrix in memory: element (i, j) lies `i + j * leading` elements from its start."""

    dtype: int
    rows: int
    columns: int
    leading: int


@dataclass(frozen=True)
class Operation:
    """D = epilogue(op(A) op(B)) with the library's names: its A is genkern's `b`, its B genkern's `a`.

    `scales` are the scale modes of its A and B, None where there are none. With `fast_accum` sums of fp8 are not
    promoted to float32 on the way, as with torch._scaled_mm's use_fast_accum.
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
        """Compute and scale type, then those of A, B, C and D."""
        return self.compute, self.scale_type, self.a.dtype, self.b.dtype, self.d.dtype, self.d.dtype

    @property
    def reductions(self) -> int:
        """Schemes that add partial sums of K in the type that they are computed in, as a mask.

        In place and in the output's type, bf16 sums would be rounded between splits: that is another result than the
        problem's, and is found to be wrong on exact inputs. Where the output is no smaller, all schemes are the same.
        """
        if self.d.dtype in (api.R_32F, api.R_32I):
            return api.REDUCTION_INPLACE | api.REDUCTION_COMPUTE_TYPE | api.REDUCTION_OUTPUT_TYPE
        return api.REDUCTION_COMPUTE_TYPE


def operation_of(problem: GemmProblem, dialect: Dialect, leading: Mapping[str, int] | None = None) -> Operation:
    """The problem as one call of the library; `leading` are leading dimensions in elements of "a", "b" and "c".

    Without `leading` the matrices are contiguous. Raises NotCovered.
    """
    if reason := refusal(problem, dialect):
        raise NotCovered(reason)
    given = leading or {}
    of_a, of_b, of_d = (
        # As stored, row by row: to the library, which has columns, rows and columns change places.
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
    """The library's number of a type; None where it has no such. HIP's are CUDA's, with its own 8-bit floats beside."""
    row = DTYPES[dtype]
    return row.hip if dialect.fnuz and row.hip is not None else row.cuda


def refusal(problem: GemmProblem, dialect: Dialect) -> str:
    """Why the library does not compute the whole problem in one call, or ""."""
    op = get_op(problem.op)
    if reason := op.no_vendor(problem):
        return reason
    if op.batched:
        return "its batches are not among the calls that are enumerated"
    if op.groups is not None:
        return "it has no product of rows in groups"
    a, b, c = problem.dtype_a, problem.dtype_b, problem.dtype_c
    if c not in DTYPES[a].outputs or any(code_of(each, dialect) is None for each in (a, b)):
        more = "; scales and cast of integer sums are not its" if DTYPES[a].is_integer else ""
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
    """Whether sums of few bits are good enough: with scales of blocks those of each block are promoted."""
    blocks = any(operand.in_step for operand in get_op(problem.op).operands(problem))
    return multiplies_float8(problem) and not is_full(problem) and not blocks


def _stored(rows: int, columns: int, row_major: bool) -> tuple[int, int]:
    """Rows and columns as they lie in memory, row by row."""
    return (rows, columns) if row_major else (columns, rows)


def _epilogue(problem: GemmProblem) -> int:
    bias = api.EPILOGUE_BIAS if problem.bias else 0
    relu = api.EPILOGUE_RELU if problem.activation == "relu" else 0
    return bias | relu or api.EPILOGUE_DEFAULT


def _scale_modes(problem: GemmProblem) -> tuple[int, int] | None:
    """Of the library's A and B (genkern's b and a), by how many elements of the problem have a scale in common."""
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
