"""Tests of profiling/loaded_gemm.py that need no GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genkern.profiling.loaded_gemm import rotating_copies


@given(st.integers(1, 2**40), st.floats(0.001, 65_536))
def test_copies_exceed_the_size_asked_for_and_no_more(bytes_per_copy: int, rotating_mb: float) -> None:
    """Together they reach `rotating_mb` MiB with the fewest copies, up to 512 of them."""
    copies = rotating_copies(bytes_per_copy, rotating_mb)
    wanted = int(rotating_mb * 2**20)
    assert 1 <= copies <= 512
    assert copies * bytes_per_copy >= wanted or copies == 512
    assert copies == 1 or (copies - 1) * bytes_per_copy < wanted


@given(st.integers(1, 2**40))
def test_zero_turns_rotation_off(bytes_per_copy: int) -> None:
    """One copy, which stays warm."""
    assert rotating_copies(bytes_per_copy, 0) == 1
