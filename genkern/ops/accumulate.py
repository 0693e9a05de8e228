"""How sums of fp8 products are made, which is part of the problem of formats that multiply fp8: `accumulate`.

The matrix units of some GPUs keep few bits of a sum of fp8 products (gpus.yaml: fp8_sum_bits). `full`: the products of
at most 128 elements along K are added up there, and their sums in float32, as CUTLASS and cuBLASLt do, and
torch._scaled_mm where nobody says otherwise. `fast`: in the matrix units all along K, as torch._scaled_mm with
use_fast_accum=True, cuBLASLt with CUBLASLT_MATMUL_DESC_FAST_ACCUM, and Triton's tl.dot on sm_90. A fast problem may be
computed in full. Where matrix units add up in float32 there is no difference, and a problem does not say it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import FLOAT32_BITS
from genkern.gemm.gpus import capabilities_of, known_archs
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import word

ACCUMULATE = "accumulate"
FAST, FULL = "fast", "full"
# Products that matrix units may add up before their sum is added in float32: four instructions of 32 along K, as
# CUTLASS promotes them (mma_promotion_interval of its collectives for fp8).
PROMOTED_K = 128


def accumulate_field() -> Any:
    """The field of a format that multiplies fp8: calls where nobody says it mean what PyTorch's own call computes."""
    return word(
        FAST,
        FULL,
        help="fp8 where matrix units keep 14 bits of sums: these, or float32 every 128 of K",
        in_calls=FULL,
    )


def is_full(problem: GemmProblem) -> bool:
    """Whether the problem asks for sums in float32."""
    return (ACCUMULATE, FULL) in problem.own


def multiplies_float8(problem: GemmProblem) -> bool:
    """Whether fp8 is what is multiplied: where one of A and B is wider, both are made of its type."""
    return DTYPES[problem.dtype_a].is_float8 and DTYPES[problem.dtype_b].is_float8


def keeps_few_bits(arch: str) -> bool:
    """Whether matrix units keep few bits of such sums; nobody knows it of an architecture that is not known."""
    return arch not in known_archs() or capabilities_of(arch).fp8_sum_bits < FLOAT32_BITS


def promotes_products(problem: GemmProblem, arch: str) -> bool:
    """Whether kernels for `arch` must add up in float32 what the matrix units have added up of PROMOTED_K elements."""
    return is_full(problem) and keeps_few_bits(arch)


def adds_up_fast(problem: GemmProblem, arch: str) -> bool:
    """Whether sums of few bits are good enough for the problem where `arch` has them."""
    return multiplies_float8(problem) and not is_full(problem) and arch in known_archs() and keeps_few_bits(arch)


def refuse_full(problem: GemmProblem, *, in_blocks: bool = False) -> str:
    """Why sums are made in one way only, or "": where scales are of blocks, each block's sum is promoted."""
    if is_full(problem) and (in_blocks or not multiplies_float8(problem)):
        return f"{ACCUMULATE} = {FULL} is for fp8 without scales of blocks, of which alone there are other sums"
    return ""


def as_called(problem: GemmProblem, operands: Iterable[Operand]) -> GemmProblem:
    """A call's problem, which asks for full sums where nobody says it: only where there are others."""
    others = multiplies_float8(problem) and not any(operand.in_step for operand in operands)
    return problem if others or not is_full(problem) else as_fast(problem)


def on_arch(problem: GemmProblem, arch: str) -> GemmProblem:
    """The problem as results for `arch` have it: where matrix units add up in float32, nobody asks for that."""
    return as_fast(problem) if is_full(problem) and not keeps_few_bits(arch) else problem


def as_fast(problem: GemmProblem) -> GemmProblem:
    """The problem that does not ask for it."""
    return replace(problem, own=tuple(pair for pair in problem.own if pair[0] != ACCUMULATE))


def as_full(problem: GemmProblem) -> GemmProblem:
    """The problem that does, of a format that has the field."""
    return replace(problem, own=tuple(sorted((*as_fast(problem).own, (ACCUMULATE, FULL)))))
