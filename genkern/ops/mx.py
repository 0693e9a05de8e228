"""Numbers in the OCP Microscaling Formats 1.0: e2m1 two a byte along K, and a power of two (e8m0) for each 32 of them.

Of two numbers in a byte the first is in its low half. Bytes are int8, as genkern stores what is no number of its type;
those that are handed in may be uint8 too.
"""

from __future__ import annotations

import itertools
from typing import Any

# Numbers along K with a power of two in common.
GROUP = 32
# The integer up to which e2m1 has all, of either sign.
LARGEST_E2M1 = 4
_BIAS = 127
_NAN = 255
# By code, the magnitudes of e2m1 and then what is below zero (section 5.3.3).
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = (*_MAGNITUDES, *(-each for each in _MAGNITUDES))
# Between neighbouring magnitudes.
_BETWEEN = tuple((low + high) / 2 for low, high in itertools.pairwise(_MAGNITUDES))


def e2m1_codes(numbers: Any) -> Any:
    """The codes, int64, of what is nearest to numbers of any shape."""
    import torch

    between = torch.tensor(_BETWEEN, device=numbers.device)
    return torch.bucketize(numbers.abs().float(), between) | (numbers < 0).long() << 3


def packed(codes: Any) -> Any:
    """Codes of four bits [..., K], two a byte: int8 [..., K / 2], rounded up."""
    import torch

    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2)).to(torch.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.int8)


def unpacked(both: Any) -> Any:
    """The codes of four bits, int32 [..., K], of bytes [..., K / 2]."""
    import torch

    both = both.contiguous().view(torch.uint8).int()
    return torch.stack((both & 15, both >> 4), -1).flatten(-2)


def e2m1_numbers(codes: Any) -> Any:
    """What codes of e2m1 stand for, float32."""
    import torch

    return torch.tensor(_E2M1, device=codes.device)[codes]


def exponents(numbers: Any) -> Any:
    """The powers of two nearest to positive numbers, as e8m0 in int8."""
    import torch

    return (torch.log2(numbers).round() + _BIAS).to(torch.uint8).view(torch.int8)


def powers(stored: Any) -> Any:
    """What bytes of e8m0 stand for, float32: from 2^-127 to 2^127, and NaN."""
    import torch

    codes = stored.contiguous().view(torch.uint8).float()
    return torch.where(codes == _NAN, torch.nan, torch.exp2(codes - _BIAS))
