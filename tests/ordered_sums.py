"""Sums of fp8 in an order that is said, on numbers by which it shows, for tests of who adds up in which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Rows that there are to be in a batch.
POOL = 300


def operands_of_rows(rows: Sequence[int], k: int, n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of a pool of rows of A these, [len(rows), k], and B [k, n]: normal deviates as e4m3 has them, by columns apart in
    size, so that it shows which products are added up first.
    """
    draw = np.random.default_rng(7)
    sizes = 2.0 ** draw.integers(-3, 4, k)
    a, b = _rounded(draw.standard_normal((POOL, k)) * sizes), _rounded(draw.standard_normal((k, n)))
    return a[list(rows)], b


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """To four significant bits, from 2^-6 to 2^8."""
    fractions, exponents = np.frexp(np.clip(values, -256, 256))
    rounded = np.ldexp(np.rint(fractions * 16) / 16, exponents)
    return np.where(np.abs(rounded) < 2.0**-6, 0, rounded).astype(np.float32)


def summed(a: NDArray[np.float32], b: NDArray[np.float32], parts: Sequence[int], promoted: int = 0) -> Any:
    """a @ b in float32 by instructions of 32 along K that keep sm_90's bits: so many of K for each accumulator, which
    are added one after the other, and of it so many at a time that are `promoted` (0: all).
    """
    import torch
    from few_bit_sums import full_sum

    sums = torch.zeros(a.shape[0], b.shape[1])
    first = 0
    for part in parts:
        of_part = torch.from_numpy(a[:, first : first + part]), torch.from_numpy(b[first : first + part])
        sums += full_sum(*of_part, every=promoted or part)
        first += part
    return sums.numpy()
