"""Sums of fp8 products as matrix units make them that keep few bits, in PyTorch: what nobody's CPU does by itself."""

from __future__ import annotations

from typing import Any

BITS = 14
_STEP = 32


def few_bit_sum(a: Any, b: Any, acc: Any = None, bits: int = BITS) -> Any:
    """acc + a [M, K] @ b [K, N], float32 [M, N], by instructions of 32 along K.

    Each adds its products to the sum so far, all of them cut to so many bits below the largest one's first.
    """
    import torch

    a, b = a.float(), b.float()
    acc = torch.zeros(a.shape[0], b.shape[1]) if acc is None else acc
    for k in range(0, a.shape[1], _STEP):
        terms = torch.cat([acc.unsqueeze(1), a[:, k : k + _STEP, None] * b[None, k : k + _STEP]], 1).double()
        _, exponent = torch.frexp(terms.abs().amax(1, keepdim=True))
        unit = torch.exp2((exponent - bits).double())
        acc = ((terms / unit).trunc() * unit).sum(1)
        _, exponent = torch.frexp(acc.abs())
        unit = torch.exp2((exponent - bits).double())
        acc = ((acc / unit).trunc() * unit).float()
    return acc


def full_sum(a: Any, b: Any, every: int = 128) -> Any:
    """The same, promoted: the sums of so many elements along K are added up in float32."""
    return sum(few_bit_sum(a[:, k : k + every], b[k : k + every]) for k in range(0, a.shape[1], every))
