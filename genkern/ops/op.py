"""Op: what one GEMM format says of itself, so that the rest of the pipeline need not know it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import genkern.ops
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.operand import Operand
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.ops.fields import NoFields


@dataclass(frozen=True)
class Op:
    """One GEMM format.

    `folder`: its folder of templates, with module.py.j2 (reference and vendor call) and kernel.py.j2 (what its kernels
    do where formats differ; templates/a16w16/kernel.py.j2 says how).
    `input_types`: types that A and B may have. Where a problem says its types but no format, they mean the one that is
    chosen `by_types`.
    `default_dtypes`: (dtype_a, dtype_b, dtype_c) for an architecture.
    `refuse`: why a problem does not fit the format on an architecture, or "".
    `accumulator`: "fp32" or "int32" for a problem: what partial sums are kept in.
    `operands`: A, B, C, then the others in the order in which kernels take them.
    `worst_row_limit`: the largest relative error of a row of C that still counts as correct.
    `fields`: what the format asks of a problem besides (genkern.ops.fields).
    `no_vendor`: "" where module.py.j2's `vendor` computes the whole problem by the vendor library, with scales, bias,
    activation and cast; else why there is no such call, and so no vendor time.
    `legal`: why a config cannot compute a problem in this format whatever the device, or ""; it is asked besides the
    family, and does not read GROUP_SIZE_M or SPLIT_K.
    `shared_scale`: how many rows of A, columns of B and elements of K have a scale in common, if they have: a reduced
    size for the interpreter has whole blocks of them, and the same rest.
    """

    name: str
    folder: str
    input_types: tuple[str, ...]
    default_dtypes: Callable[[str], tuple[str, str, str]]
    refuse: Callable[[GemmProblem, str], str]
    accumulator: Callable[[GemmProblem], str]
    operands: Callable[[GemmProblem], tuple[Operand, ...]]
    worst_row_limit: Callable[[GemmProblem], float]
    no_vendor: Callable[[GemmProblem], str] = lambda problem: ""
    by_types: bool = False
    fields: type = NoFields
    legal: Callable[[GemmProblem, Config], str] | None = None
    shared_scale: Callable[[GemmProblem], tuple[int, int, int]] = lambda problem: (1, 1, 1)

    def extra_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """The operands besides A, B and C, in the order in which kernels take them."""
        return self.operands(problem)[3:]

    def step_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Those of `extra_operands` that are read at every step over K."""
        return tuple(operand for operand in self.extra_operands(problem) if operand.in_step)

    def finish_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Those of `extra_operands` that are read once, when the sums are complete."""
        return tuple(operand for operand in self.extra_operands(problem) if not operand.in_step)

    def finishes(self, problem: GemmProblem) -> bool:
        """Whether anything but the cast to C's type is left to do when the sums are complete."""
        return problem.activation != "none" or bool(self.finish_operands(problem))


def matrices(problem: GemmProblem) -> tuple[Operand, Operand, Operand]:
    """A [M, K], B [K, N] and C [M, N] of a plain product; B is the weight, and rotates."""
    M, N, K = problem.M, problem.N, problem.K
    return (
        Operand("a", "activation", (M, K), problem.dtype_a, problem.row_major_a),
        Operand("b", "weight", (K, N), problem.dtype_b, problem.row_major_b, rotates=True),
        Operand("c", "output", (M, N), problem.dtype_c),
    )


def bias_of(problem: GemmProblem) -> tuple[Operand, ...]:
    """The bias vector [N] in C's type, where the problem has one."""
    return (Operand("bias", "bias", (problem.N,), problem.dtype_c),) if problem.bias else ()


@functools.lru_cache(maxsize=1)
def op_names() -> tuple[str, ...]:
    """The formats there are: one folder each in genkern/ops."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(genkern.ops.__path__) if module.ispkg))


def op_by_type(dtype: str) -> Op:
    """The format that operands of this type mean where nothing names one."""
    ops = (get_op(name) for name in op_names())
    return next((op for op in ops if op.by_types and dtype in op.input_types), get_op(DEFAULT_OP))


def get_op(name: str) -> Op:
    """The op of that name. Raises InputError when there is none."""
    if name not in op_names():
        raise InputError(f"unknown op {name!r}: use one of {', '.join(op_names())}")
    op: Op = importlib.import_module(f"genkern.ops.{name}").OP
    return op


@functools.lru_cache(maxsize=4096)
def bytes_moved(problem: GemmProblem) -> int:
    """Least traffic with device memory: each input read once, the output written once."""
    return sum(operand.size_bytes for operand in get_op(problem.op).operands(problem))


def gb_per_s(problem: GemmProblem, time_us: float) -> float:
    """Achieved GB/s (10^9 bytes) of `bytes_moved` at `time_us` microseconds."""
    return bytes_moved(problem) / time_us * 1e-3


def check_problem(problem: GemmProblem, arch: str) -> None:
    """Raise InputError when the problem's types do not fit its op on `arch`."""
    if reason := get_op(problem.op).refuse(problem, arch):
        raise InputError(f"{problem.size} {problem.op}: {reason}")
