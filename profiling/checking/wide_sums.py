"""Exact fp8 inputs whose sums along K are exact in float32 but wrong if the accumulator keeps fewer bits.

K is divided into blocks of 128 elements, which kernels with full sums may add up inside the tensor cores. All products
of a block are either large and of one sign, or small. In each column of B, large blocks occur in pairs that cancel,
`large` and `-large`, at random positions. An accumulator of few bits loses the small products that it adds between the
two blocks of a pair. The correct C is the sum of the small products, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.ops.accumulate import PROMOTED_K

# Largest magnitude of the small numbers: sums of 128 products stay below 2^13, which 14 bits represent.
_LARGEST = 7
# Large numbers of B are multiples of this. Times 7 it is the largest number of e4m3; small products are then added to
# sums of about 2^17, whose last of 14 bits is worth 16.
_LARGE = 64
# A pair, and a block of small numbers between them.
_FEWEST_BLOCKS = 3
# Largest sum of small products: the exact range of float32 minus the sum of a large block.
_SMALL_SUM = 2**23 - 2**19


def shows_wide_sums(operands: Sequence[Operand]) -> bool:
    """True if K is long enough and the types of A and B hold the numbers."""
    a, b, *_ = operands
    holds = min(DTYPES[each.dtype].largest for each in (a, b)) >= _LARGE * _LARGEST
    return holds and a.shape[-1] // PROMOTED_K >= _FEWEST_BLOCKS


def of_a(device: Any, operand: Operand, generator: Any) -> Any:
    """Return A's numbers [M, K], float16: positive, and the same in each block."""
    *outer, K = operand.shape
    block = _integers(_LARGEST, (*outer, PROMOTED_K), device, generator)
    return block.repeat(*[1] * len(outer), -(-K // PROMOTED_K))[..., :K].half()


def of_b(device: Any, operand: Operand, generator: Any) -> Any:
    """Return B's numbers [..., K, N], float16."""
    import torch

    *outer, K, N = operand.shape
    whole = K // PROMOTED_K
    largest = max(1, min(_LARGEST, math.isqrt(_SMALL_SUM // K)))
    numbers = _integers(2 * largest, (*outer, K, N), device, generator)
    numbers -= largest + (numbers <= largest).to(torch.int16)
    is_large = torch.randint(0, 2, (*outer, whole, N), device=device, generator=generator).bool()
    # In every other column at least one pair has a small block between its large blocks.
    is_large[..., 0, ::2], is_large[..., 1, ::2] = True, False
    # Change the last block if necessary, so that the number of large blocks is even.
    is_large[..., -1, :] ^= is_large.sum(-2) % 2 == 1
    signs = (2 * (is_large.cumsum(-2) % 2) - 1).to(torch.int16)
    pattern = _LARGE * _integers(_LARGEST, (*outer, PROMOTED_K, N), device, generator)
    for number in range(whole):
        block = numbers[..., number * PROMOTED_K : (number + 1) * PROMOTED_K, :]
        large = signs[..., number, None, :] * pattern
        block.copy_(torch.where(is_large[..., number, None, :], large, block))
    return numbers.half()


def _integers(largest: int, shape: Sequence[int], device: Any, generator: Any) -> Any:
    """Return random int16 from 1 to `largest`."""
    import torch

    return torch.randint(1, largest + 1, tuple(shape), dtype=torch.int16, device=device, generator=generator)
