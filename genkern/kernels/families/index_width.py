"""Which values kernels count in 32 bits and which in 64, and which problems are illegal because they exceed 32 bits.

Pointers have 64 bits; an offset that is added to one has as many bits as its factors. Sizes, leading dimensions, tile
numbers and coordinates of TMA have 32 bits each, but their products may be larger.

| product of sizes | counted in | from 2^31 on |
|---|---|---|
| elements of A, B, C, of one group's weight | 32 bits | 64 bits, in another text (`wide_operands`); TMA always counts
in 64 |
| elements of partial sums, of slot rows | 32 bits | 64 bits, likewise; sums of whole tiles always in 64 |
| elements between weights of groups | 64 bits | |
| elements between products of a batch | 32 bits | illegal (the format refuses it; a call refuses such strides) |
| partial sums of a product of a batch | 32 bits | illegal (legality.legal_split) |
| TMA rows of all products of a batch | 32 bits | illegal (tiled_tma, cute.dense) |
| TMA rows of the weights of all groups | 32 bits | illegal, here |
| scales of blocks, elements of rows stored together | 32 bits | illegal, here |
| copies of unaligned rows | 32 bits | illegal (realigned) |
| tiles, programs, K-blocks, each times splits | 32 bits | illegal (legality, limits, and families that count them) |
| rows of a mixture of experts, M times top_k | 32 bits | illegal (the format refuses it) |
| rows of a slice times its pitch | 32 bits | the call goes to the library (runtime.launch.prepared) |
"""

from __future__ import annotations

from functools import lru_cache

from genkern.gemm.problem import INT32, GemmProblem
from genkern.ops.op import get_op, groups_of, operands_of


def wide_operands(problem: GemmProblem, max_split_k: int) -> dict[str, bool]:
    """Return, by template variable, which matrices have elements beyond 32-bit offsets and need 64-bit ones."""
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
    """Return why no kernel can compute the problem, or no kernel that loads through TMA if `uses_tma`; else "".

    The reason is a count that exceeds 32 bits and for which no kernel text with 64 bits exists.
    """
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
