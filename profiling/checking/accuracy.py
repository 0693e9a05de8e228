"""Error measures of an output against its reference: AITER's error ratio and the worst relative error of a row."""

from __future__ import annotations

import math
from typing import Any

from genkern.timing.session import TOLERANCE


def error_ratio(actual: Any, expected: Any, atol: float = TOLERANCE, rtol: float = TOLERANCE) -> float:
    """Return the share of elements of [M, N] with |actual - expected| > atol + rtol |expected|, as AITER computes it.

    Returns 1.0 if any element is NaN or infinite.
    """
    return min(1.0, elements_outside(actual, expected, atol, rtol) / int(expected.numel()))


def elements_outside(actual: Any, expected: Any, atol: float = TOLERANCE, rtol: float = TOLERANCE) -> float:
    """Return the number of elements with |actual - expected| > atol + rtol |expected|.

    Returns infinity if any element is NaN or infinite.
    """
    import torch

    actual = actual.float()
    if not bool(torch.isfinite(actual).all()):
        return math.inf
    close = torch.isclose(actual, expected, rtol=rtol, atol=atol)
    return int((~close).sum().item())


def worst_row_error(actual: Any, expected: Any) -> float:
    """Return the largest ||actual_i - expected_i|| / ||expected_i|| over the rows i of [M, N].

    Returns infinity for NaN or infinity.

    The denominator is at least the norm of a row whose elements are all TOLERANCE. An activation maps negative inputs
    to values close to zero that have few correct digits even in float32: 1 + erf(x) has none left below x = -4.
    """
    difference = (actual.float() - expected).norm(dim=-1)
    size = expected.norm(dim=-1).clamp(min=TOLERANCE * expected.shape[-1] ** 0.5)
    worst = float((difference / size).max().item())
    return worst if worst == worst else float("inf")
