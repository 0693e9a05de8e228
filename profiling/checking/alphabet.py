"""Choose the integers of exact inputs such that every partial sum is exact, whatever the order of sums and split-K.

With integers, and scales that are powers of two, a sum is exact in any order as long as the sum of the products'
magnitudes stays within the range in which the accumulator represents every integer. A correct result then equals its
reference to the bit, and a product that is missing, doubled or misplaced changes the result by at least one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand

# Largest magnitude of an input: exact in every input type (fp8e5m2 represents all integers up to 8).
LARGEST = 7
# Largest sum of magnitudes that a float32 accumulator represents exactly. int32 sums are converted to float32 before
# they are stored.
_FLOAT32_SUM = 2**23
# Significant bits that tensor cores keep of sums of fp8 products, for the GPUs that keep fewest
# (genkern/gemm/gpus.yaml, fp8_sum_bits).
FLOAT8_BITS = 14
# A sum of random signs stays within 2.5 standard deviations in 99 of 100 cases.
_DEVIATIONS = 2.5
# Maximum number of parts of K for the sake of an output type of few bits. With more parts every single product would
# change an output; with this number most products do.
_MOST_ROUNDS_FOR_OUTPUT = 4
# Exponents of random scales. Scales inside the sum over K use up bits of the accumulator, so they get a smaller range.
INNER_EXPONENTS = (0, 1)
OUTER_EXPONENTS = (-1, 0, 1)


@dataclass(frozen=True)
class Alphabet:
    """The integers in the exact inputs of one problem.

    A and B hold integers of magnitude 1 to `largest` and no zeros, except that A is zero in all columns outside one of
    `parts` equal parts of K. There is one round for each part, so every product occurs in one of the rounds.

    largest: largest magnitude in the `exact` rounds
    parts: number of parts of K in the `exact` rounds
    drifting: largest magnitude in the `layout` round, whose partial sums rise far and come down again
    drifting_parts: number of parts into which the `layout` round divides K; it uses one of them
    """

    largest: int
    parts: int
    drifting: int
    drifting_parts: int


def scales_inside(operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """Return the scales that are applied inside the sum over K."""
    return tuple(operand for operand in operands if operand.role == "scale" and operand.in_step)


def sum_limit(operands: Sequence[Operand], float8_bits: int = FLOAT8_BITS) -> int:
    """Return the largest sum of magnitudes that the accumulator holds exactly, in units of the smallest product.

    If scales are applied inside the sum, products with the same scale are summed first and these sums are added in
    float32.
    """
    return 1 << (float8_bits - 1) if _is_float8(operands) and not scales_inside(operands) else _FLOAT32_SUM


def _is_float8(operands: Sequence[Operand]) -> bool:
    """True if fp8 products are computed. If either A or B has a wider type, both are converted to that type first."""
    return all(DTYPES[operand.dtype].is_float8 for operand in operands[:2])


def _with_one_scale(operands: Sequence[Operand]) -> int:
    """Return the largest number of products along K that share their scales; K if no scale is inside the sum."""
    K = operands[0].shape[-1]
    return min((-(-K // scale.shape[-1]) for scale in scales_inside(operands)), default=K)


def choose_alphabet(operands: Sequence[Operand], largest: int = LARGEST, float8_bits: int = FLOAT8_BITS) -> Alphabet:
    """Return the alphabet for a GEMM with these operands (A, B, C first).

    Their types must hold all integers up to `largest`.

    The magnitudes are as large as the sums allow. K is divided into enough parts that nearly all results are also exact
    in C's type, so that each single product changes a result; for an output type of few bits, at most
    `_MOST_ROUNDS_FOR_OUTPUT` parts. `float8_bits`: significant bits that the accumulator keeps of sums of fp8 products.
    """
    K = operands[0].shape[-1]
    inside = len(scales_inside(operands))
    # Largest value and mean square of the factor by which scales inside the sum multiply a product.
    gain = 2 ** (max(INNER_EXPONENTS) * inside)
    square = (sum(4**exponent for exponent in INNER_EXPONENTS) / len(INNER_EXPONENTS)) ** inside
    limit = sum_limit(operands, float8_bits)
    together = _with_one_scale(operands) if _is_float8(operands) else 1
    # C's type represents every integer up to this magnitude.
    shown = min(DTYPES[operands[2].dtype].exact, 2 * _FLOAT32_SUM)
    integers = range(1, min(largest, LARGEST, *(DTYPES[operand.dtype].exact for operand in operands[:2])) + 1)

    def exact(largest: int) -> bool:
        return K * largest**2 * gain <= limit and together * largest**2 <= max(1 << (float8_bits - 1), together)

    def fits(largest: int) -> bool:
        mean_square = (largest + 1) * (2 * largest + 1) / 6
        spread = math.sqrt(K * square) * mean_square
        return exact(largest) and _DEVIATIONS * spread <= shown

    of_sum = -(-K * gain // limit)
    of_output = min(_MOST_ROUNDS_FOR_OUTPUT, math.ceil(K * square * (_DEVIATIONS / shown) ** 2))
    return Alphabet(
        largest=max((n for n in integers if fits(n)), default=1),
        parts=max(of_sum, of_output),
        drifting=max((n for n in integers if exact(n)), default=1),
        drifting_parts=of_sum,
    )
