"""Numbers of the OCP Microscaling Formats 1.0: e2m1, packed two per byte along K, with a power of two (e8m0) per 32.

The first number of a byte is in its low half. Bytes have type int8, as genkern's storage types do; uint8 is accepted,
too.
"""

from __future__ import annotations

import itertools
from typing import Any

# Numbers along K that share a power of two.
GROUP = 32
# All integers up to this magnitude are e2m1 numbers.
LARGEST_E2M1 = 4
_BIAS = 127
_NAN = 255
# e2m1 numbers by code: the non-negative ones, then the negative ones (section 5.3.3).
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = (*_MAGNITUDES, *(-each for each in _MAGNITUDES))
# Midpoints between neighbouring magnitudes.
_BETWEEN = tuple((low + high) / 2 for low, high in itertools.pairwise(_MAGNITUDES))


def e2m1_codes(numbers: Any) -> Any:
    """Return the codes (int64) of the e2m1 numbers nearest to `numbers`, which may have any shape."""
    import torch

    between = torch.tensor(_BETWEEN, device=numbers.device)
    return torch.bucketize(numbers.abs().float(), between) | (numbers < 0).long() << 3


def packed(codes: Any) -> Any:
    """Pack 4-bit codes [..., K] two per byte: int8 [..., K / 2], rounded up."""
    import torch

    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2)).to(torch.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.int8)


def unpacked(both: Any) -> Any:
    """Return the 4-bit codes (int32, [..., K]) of bytes [..., K / 2]."""
    import torch

    both = both.contiguous().view(torch.uint8).int()
    return torch.stack((both & 15, both >> 4), -1).flatten(-2)


def e2m1_numbers(codes: Any) -> Any:
    """Return the float32 numbers of e2m1 codes."""
    import torch

    return torch.tensor(_E2M1, device=codes.device)[codes]


def exponents(numbers: Any) -> Any:
    """Return the powers of two nearest to positive numbers, as e8m0 codes in int8."""
    import torch

    return (torch.log2(numbers).round() + _BIAS).to(torch.uint8).view(torch.int8)


def powers(stored: Any) -> Any:
    """Return the float32 values of e8m0 codes: from 2^-127 to 2^127, and NaN."""
    import torch

    codes = stored.contiguous().view(torch.uint8).float()
    return torch.where(codes == _NAN, torch.nan, torch.exp2(codes - _BIAS))
