"""What kernels count in 32 bits, and what in 64: the one place that says which problems are past either.

Pointers have 64 bits, and what is added to them as many as its factors. Sizes, leading dimensions, tiles and
coordinates of the copy engine are 32-bit numbers each; products of them may be more.

| product of sizes | counted in | from 2^31 on |
|---|---|---|
| elements of A, B, C, of one group's weight | 32 bits | 64: another text (`wide_operands`); TMA counts in 64 always |
| elements of partial sums, of rows of slots | 32 bits | 64, likewise; whole tiles of sums in 64 always |
| elements between weights of groups | 64 bits | |
| elements between products of a batch | 32 bits | illegal (its format refuses it; the call refuses strides) |
| partial sums of a product of a batch | 32 bits | illegal (legality.legal_split) |
| rows to TMA of all products of a batch | 32 bits | illegal (tiled_tma, cute.dense) |
| rows to TMA of the weights of all groups | 32 bits | illegal, here |
| scales of blocks, elements of rows stored together | 32 bits | illegal, here |
| copies of rows off 16 bytes | 32 bits | illegal (realigned) |
| tiles, programs, K-blocks, each times splits | 32 bits | illegal (legality, limits, and families that count them) |
| rows of a mixture of experts, M times top_k | 32 bits | illegal (its format refuses it) |
| a slice's rows times its pitch, of a matrix below | 32 bits | the call goes to the library (runtime.launch.prepared) |
"""

from __future__ import annotations

from functools import lru_cache

from genkern.gemm.problem import INT32, GemmProblem
from genkern.ops.op import get_op, groups_of, operands_of


def wide_operands(problem: GemmProblem, max_split_k: int) -> dict[str, bool]:
    """Which matrices have elements that 32-bit offsets do not reach, so that kernels' texts have 64."""
    matrices = get_op(problem.op).operands(problem)[:3]
    wide_a, wide_b, wide_c = (operand.shape[-2] * operand.shape[-1] >= INT32 for operand in matrices)
    groups = groups_of(problem)
    return {
        "wide_a": wide_a,
        "wide_b": wide_b,
        "wide_c": wide_c,
        "wide_partial": problem.M * problem.N * max_split_k >= INT32,
        "wide_slots": groups is not None and groups.rows(problem.M) * problem.N >= INT32,
    }


@lru_cache(maxsize=1024)
def counted_limit(problem: GemmProblem, uses_tma: bool) -> str:
    """For kernels of any family: what of the problem is more than they count in 32 bits, where none has 64; or ""."""
    _, b, *_ = operands = operands_of(problem)
    for operand in operands:
        if operand.in_step and len(operand.shape) > 1 and operand.shape[-2] * operand.shape[-1] >= INT32:
            return f"{operand.name} has more elements than 32 bits count"
    if b.together > 1 and problem.K * b.together >= INT32:
        return "rows of B that are stored together have more elements than 32 bits count"
    groups = groups_of(problem)
    if groups is not None and uses_tma and groups.count * b.shape[-1] >= INT32:
        return "weights of all groups have more rows than 32 bits count"
    return ""
