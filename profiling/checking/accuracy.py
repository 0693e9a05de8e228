"""How far an output is from its reference, as AITER counts it and by its worst row."""

from __future__ import annotations

import math
from typing import Any

from genkern.timing.session import TOLERANCE


def error_ratio(actual: Any, expected: Any, atol: float = TOLERANCE, rtol: float = TOLERANCE) -> float:
    """Share of elements of [M, N] outside atol + rtol |expected|; 1.0 when any is NaN or infinite, as in AITER."""
    return min(1.0, elements_outside(actual, expected, atol, rtol) / int(expected.numel()))


def elements_outside(actual: Any, expected: Any, atol: float = TOLERANCE, rtol: float = TOLERANCE) -> float:
    """How many elements these are; infinitely many, of which the share counts as all, when any is NaN or infinite."""
    import torch

    actual = actual.float()
    if not bool(torch.isfinite(actual).all()):
        return math.inf
    close = torch.isclose(actual, expected, rtol=rtol, atol=atol)
    return int((~close).sum().item())


def worst_row_error(actual: Any, expected: Any) -> float:
    """Largest ||actual_i - expected_i|| / ||expected_i|| over the rows i of [M, N]; infinite for NaN or infinity.

    A row smaller than one of elements of TOLERANCE counts as that one: what an activation has pressed
    against zero has few correct digits, in float32 too (1 + erf(x) has none left below x = -4).
    """
    difference = (actual.float() - expected).norm(dim=-1)
    size = expected.norm(dim=-1).clamp(min=TOLERANCE * expected.shape[-1] ** 0.5)
    worst = float((difference / size).max().item())
    return worst if worst == worst else float("inf")
