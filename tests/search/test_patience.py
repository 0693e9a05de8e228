"""Tests of genkern/search/patience.py."""

from __future__ import annotations

import pytest

from genkern.search.patience import Patience


def test_binaries_in_a_row_are_counted() -> None:
    """Configs of one binary count once, and a faster one begins anew; an equal time is not faster."""
    patience = Patience(3)
    times = [("a", 10.0), ("a", 12.0), ("b", 10.0), ("b", 11.0), ("c", 9.0), ("a", 10.0), ("d", None), ("d", 9.5)]
    assert not any(patience.ends(*each) for each in times)
    assert patience.ends("e", 9.0)


def test_what_is_known_beforehand_counts() -> None:
    """A run that goes on knows the best time of its first part."""
    assert Patience(1, 5.0).ends("a", 6.0)
    assert not Patience(1, 5.0).ends("a", 4.0)
    assert not Patience(1).ends("a", 6.0)


@pytest.mark.parametrize("duration_us", [None, 1.0])
def test_without_patience_all_are_tried(duration_us: float | None) -> None:
    """Zero is no number of binaries."""
    patience = Patience(0)
    assert not any(patience.ends(str(number), duration_us) for number in range(1000))
