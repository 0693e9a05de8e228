"""How far an output is from its reference, as AITER counts it and by its worst row."""

from __future__ import annotations

from typing import Any

# Those of AITER's gradlib for 16-bit outputs.
RELATIVE_TOLERANCE = 1e-2
ABSOLUTE_TOLERANCE = 1e-2


def error_ratio(actual: Any, expected: Any) -> float:
    """Share of elements of [M, N] outside the tolerance; 1.0 when any is NaN or infinite, as in AITER."""
    import torch

    actual = actual.float()
    if not bool(torch.isfinite(actual).all()):
        return 1.0
    close = torch.isclose(actual, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)
    return int((~close).sum().item()) / int(close.numel())


def worst_row_error(actual: Any, expected: Any) -> float:
    """Largest ||actual_i - expected_i|| / ||expected_i|| over the rows i of [M, N]; infinite for NaN or infinity.

    A row smaller than one of elements of ABSOLUTE_TOLERANCE counts as that one: what an activation has pressed
    against zero has few correct digits, in float32 too (1 + erf(x) has none left below x = -4).
    """
    difference = (actual.float() - expected).norm(dim=-1)
    size = expected.norm(dim=-1).clamp(min=ABSOLUTE_TOLERANCE * expected.shape[-1] ** 0.5)
    worst = float((difference / size).max().item())
    return worst if worst == worst else float("inf")
