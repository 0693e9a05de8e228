"""Exact inputs of fp8 whose sums along K are exact in float32, and far from it in the few bits of matrix units.

Of 128 elements along K at a time, which kernels with full sums may add up in matrix units, all products are large, of
one sign, or all are small. In each column of B blocks of large ones come in pairs, anywhere, that cancel: `large` and
`-large`. What a sum of few bits adds between the two it loses, and C is the sum of the small ones, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.ops.accumulate import PROMOTED_K

# The largest magnitude of small numbers: sums of 128 products stay below 2^13, which 14 bits hold.
_LARGEST = 7
# What large numbers of B are multiples of: times 7 it is the largest number of e4m3, and sums of small products are
# added to some 2^17, of which 14 bits end at 16.
_LARGE = 64
# A pair, and a block of small numbers between.
_FEWEST_BLOCKS = 3
# What float32 sums hold to the unit, without what large blocks add up to.
_SMALL_SUM = 2**23 - 2**19


def shows_wide_sums(operands: Sequence[Operand]) -> bool:
    """Whether there is K enough for it, and A and B have the numbers."""
    a, b, *_ = operands
    holds = min(DTYPES[each.dtype].largest for each in (a, b)) >= _LARGE * _LARGEST
    return holds and a.shape[-1] // PROMOTED_K >= _FEWEST_BLOCKS


def of_a(device: Any, operand: Operand, generator: Any) -> Any:
    """A's numbers [M, K], float16: positive, and the same in each block."""
    *outer, K = operand.shape
    block = _integers(_LARGEST, (*outer, PROMOTED_K), device, generator)
    return block.repeat(*[1] * len(outer), -(-K // PROMOTED_K))[..., :K].half()


def of_b(device: Any, operand: Operand, generator: Any) -> Any:
    """B's numbers [..., K, N], float16."""
    import torch

    *outer, K, N = operand.shape
    whole = K // PROMOTED_K
    largest = max(1, min(_LARGEST, math.isqrt(_SMALL_SUM // K)))
    numbers = _integers(2 * largest, (*outer, K, N), device, generator)
    numbers -= largest + (numbers <= largest).to(torch.int16)
    is_large = torch.randint(0, 2, (*outer, whole, N), device=device, generator=generator).bool()
    # In every other column at least one pair has something between.
    is_large[..., 0, ::2], is_large[..., 1, ::2] = True, False
    # Pairs: as many as there are, or one more or fewer.
    is_large[..., -1, :] ^= is_large.sum(-2) % 2 == 1
    signs = (2 * (is_large.cumsum(-2) % 2) - 1).to(torch.int16)
    pattern = _LARGE * _integers(_LARGEST, (*outer, PROMOTED_K, N), device, generator)
    for number in range(whole):
        block = numbers[..., number * PROMOTED_K : (number + 1) * PROMOTED_K, :]
        large = signs[..., number, None, :] * pattern
        block.copy_(torch.where(is_large[..., number, None, :], large, block))
    return numbers.half()


def _integers(largest: int, shape: Sequence[int], device: Any, generator: Any) -> Any:
    """int16, from 1 on."""
    import torch

    return torch.randint(1, largest + 1, tuple(shape), dtype=torch.int16, device=device, generator=generator)
