"""Which integers exact inputs are made of, so that every partial sum is exact whatever the order and the split.

With integers (and scales that are powers of two) a sum is exact in any order as long as the sum of the products'
magnitudes stays within what the accumulator holds to the unit. A result then equals its reference to the bit, and a
product that is missing, doubled or misplaced changes it by one at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand

# The largest magnitude: exact in every input type (fp8e5m2 has all integers up to 8).
LARGEST = 7
# Sums of magnitudes that accumulators hold to the unit; int32 sums go through float32 on their way out.
_FLOAT32_SUM = 2**23
# Of fp8 products: so many bits are kept by the matrix units that keep fewest (genkern/gemm/gpus.yaml, fp8_sum_bits).
FLOAT8_BITS = 14
# A sum of random signs stays within 2.5 standard deviations 99 times of 100.
_DEVIATIONS = 2.5
# More rounds than this only make every single product visible in outputs of few bits, where many of them are anyway.
_MOST_ROUNDS_FOR_OUTPUT = 4
# Exponents of scales: of those inside the sum over K, which cost it bits, and of the others.
INNER_EXPONENTS = (0, 1)
OUTER_EXPONENTS = (-1, 0, 1)


@dataclass(frozen=True)
class Alphabet:
    """What the exact inputs of one problem are made of.

    A and B hold integers of magnitude 1 to `largest`, no zero among them, but that A is zero in all columns outside
    one of `parts` equal parts of K: one round for each part, so that each product stands in one of them. `drifting`
    is the largest magnitude for the round whose partial sums go far up and come down again, and `drifting_parts` into
    how many parts it divides K, of which it uses one.
    """

    largest: int
    parts: int
    drifting: int
    drifting_parts: int


def scales_inside(operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """The scales that stand inside the sum over K."""
    return tuple(operand for operand in operands if operand.role == "scale" and operand.in_step)


def sum_limit(operands: Sequence[Operand], float8_bits: int = FLOAT8_BITS) -> int:
    """How large a sum of magnitudes may be that stays exact in the accumulator, in units of the smallest product.

    Where scales stand inside the sum, products with one scale are summed by themselves, and those sums in float32.
    """
    return 1 << (float8_bits - 1) if _is_float8(operands) and not scales_inside(operands) else _FLOAT32_SUM


def _is_float8(operands: Sequence[Operand]) -> bool:
    """Whether fp8 is what is multiplied: where one of A and B is wider, both are made of its type."""
    return all(DTYPES[operand.dtype].is_float8 for operand in operands[:2])


def _with_one_scale(operands: Sequence[Operand]) -> int:
    """How many products there are at most with the same scales: all of them where none stand inside the sum."""
    K = operands[0].shape[-1]
    return min((-(-K // scale.shape[-1]) for scale in scales_inside(operands)), default=K)


def choose_alphabet(operands: Sequence[Operand], largest: int = LARGEST, float8_bits: int = FLOAT8_BITS) -> Alphabet:
    """The alphabet for a GEMM with these operands (A, B, C first), whose types hold all integers up to `largest`.

    As large as sums allow, and of as many parts as it takes for nearly all results to be exact in C's type too: where
    they are, each single product shows. `float8_bits` are kept of sums of fp8 products.
    """
    K = operands[0].shape[-1]
    inside = len(scales_inside(operands))
    # Largest and mean square of what scales inside the sum multiply a product by.
    gain = 2 ** (max(INNER_EXPONENTS) * inside)
    square = (sum(4**exponent for exponent in INNER_EXPONENTS) / len(INNER_EXPONENTS)) ** inside
    limit = sum_limit(operands, float8_bits)
    together = _with_one_scale(operands) if _is_float8(operands) else 1
    # A sum of this size and its neighbours differ in their bits.
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
