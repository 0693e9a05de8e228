"""Tests of genkern.family: widths of composite tiles, and the blocks that each family takes."""

from __future__ import annotations

import pytest

from genkern.family import FAMILIES, block_problem, widths


@pytest.mark.parametrize("width", range(16, 273, 16))
def test_widths_add_up(width: int) -> None:
    """A width is the sum of its parts, which are distinct powers of two, largest first."""
    if bin(width).count("1") > 3:
        with pytest.raises(ValueError, match="at most three"):
            widths(width)
        return
    parts = widths(width)
    used = [part for part in parts if part]
    assert sum(parts) == width
    assert used == sorted(set(used), reverse=True)
    assert all(part & (part - 1) == 0 and part >= 16 for part in used)


@pytest.mark.parametrize("width", [8, 24, 240, 512])
def test_other_widths_are_refused(width: int) -> None:
    """Parts below 16 or above 256, or more than three of them, have no kernel."""
    with pytest.raises(ValueError, match="not the sum"):
        widths(width)


@pytest.mark.parametrize(
    ("family", "field", "good", "bad"),
    [
        ("tiled", "BLOCK_SIZE_M", 16, 8),
        ("tiled", "BLOCK_SIZE_N", 64, 48),
        ("gemv", "BLOCK_SIZE_M", 1, 0),
        ("gemv", "BLOCK_SIZE_K", 1024, 2048),
        ("warp_specialized", "BLOCK_SIZE_N", 160, 24),
        ("warp_specialized", "BLOCK_SIZE_M", 128, 160),
    ],
)
def test_blocks_by_family(family: str, field: str, good: int, bad: int) -> None:
    """At each family's border one block size is taken and the other refused with a reason."""
    assert block_problem(family, field, good) == ""
    assert str(bad) in block_problem(family, field, bad)


def test_names() -> None:
    """The table finds each family under its own name."""
    assert all(name == family.name for name, family in FAMILIES.items())
