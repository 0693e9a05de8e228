"""The field `accumulate`, by which formats that multiply fp8 say how sums of products are formed.

The tensor cores of some GPUs keep only few bits of a sum of fp8 products (gpus.yaml: fp8_sum_bits).

full: the tensor cores add up at most 128 products along K, and the partial sums are added in float32. CUTLASS and
    cuBLASLt do so by default, and so does torch._scaled_mm.
fast: the tensor cores add up all of K, as torch._scaled_mm does with use_fast_accum=True, cuBLASLt with
    CUBLASLT_MATMUL_DESC_FAST_ACCUM, and Triton's tl.dot on sm_90. A kernel may compute such a problem in full.

On GPUs whose tensor cores add in float32 the two do not differ, and problems do not set the field.
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
# Products that tensor cores add up before the sum is added in float32: four instructions of 32 elements along K, as in
# CUTLASS (mma_promotion_interval of its collectives for fp8).
PROMOTED_K = 128


def accumulate_field() -> Any:
    """Return the dataclass field of a format that multiplies fp8.

    Run-time calls default to `full`, which is what PyTorch's own call computes.
    """
    return word(
        FAST,
        FULL,
        help="fp8 on GPUs whose tensor cores keep 14 bits of sums: sum in these bits, or in float32 every 128 of K",
        in_calls=FULL,
    )


def is_full(problem: GemmProblem) -> bool:
    """Whether the problem sets `accumulate` to full."""
    return (ACCUMULATE, FULL) in problem.own


def multiplies_float8(problem: GemmProblem) -> bool:
    """Whether the kernel multiplies fp8. If one of A and B has a wider type, the other is converted to it."""
    return DTYPES[problem.dtype_a].is_float8 and DTYPES[problem.dtype_b].is_float8


def keeps_few_bits(arch: str) -> bool:
    """Return True if the tensor cores accumulate fp8 products in fewer bits than float32.

    True for unknown architectures, to be safe.
    """
    return arch not in known_archs() or capabilities_of(arch).fp8_sum_bits < FLOAT32_BITS


def promotes_products(problem: GemmProblem, arch: str) -> bool:
    """Whether kernels for `arch` must add the tensor cores' sums of PROMOTED_K elements in float32."""
    return is_full(problem) and keeps_few_bits(arch)


def adds_up_fast(problem: GemmProblem, arch: str) -> bool:
    """Whether the problem accepts sums of few bits and `arch` forms such sums."""
    return multiplies_float8(problem) and not is_full(problem) and arch in known_archs() and keeps_few_bits(arch)


def refuse_full(problem: GemmProblem, *, in_blocks: bool = False) -> str:
    """Return why the problem cannot ask for full sums, or "".

    With scales of blocks (`in_blocks`), sums are always promoted per block.
    """
    if is_full(problem) and (in_blocks or not multiplies_float8(problem)):
        return f"{ACCUMULATE} = {FULL} is only for fp8 without scales of blocks"
    return ""


def as_called(problem: GemmProblem, operands: Iterable[Operand]) -> GemmProblem:
    """Return a call's problem, without full sums unless it multiplies fp8 and has no scales of blocks."""
    others = multiplies_float8(problem) and not any(operand.in_step for operand in operands)
    return problem if others or not is_full(problem) else as_fast(problem)


def on_arch(problem: GemmProblem, arch: str) -> GemmProblem:
    """Return the problem as results files for `arch` state it: without full sums if its tensor cores add in float32."""
    return as_fast(problem) if is_full(problem) and not keeps_few_bits(arch) else problem


def as_fast(problem: GemmProblem) -> GemmProblem:
    """Return the problem with fast sums."""
    return replace(problem, own=tuple(pair for pair in problem.own if pair[0] != ACCUMULATE))


def as_full(problem: GemmProblem) -> GemmProblem:
    """Return the problem with full sums. Its format must have the field."""
    return replace(problem, own=tuple(sorted((*as_fast(problem).own, (ACCUMULATE, FULL)))))
