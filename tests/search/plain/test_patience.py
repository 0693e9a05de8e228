"""Tests of genkern/search/plain/patience.py."""

from __future__ import annotations

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.search.plain.patience import Patience, forms_first


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


def test_no_form_goes_untried() -> None:
    """Four binaries of each form of a family come before all others, with all that share them."""

    def configs(stem: str, stages: range) -> list[Config]:
        return [made(stem, 64, 64, 64, group, num_stages=each) for each in stages for group in (8, 1)]

    order = [*configs("tiled", range(2, 9)), *configs("skinny", range(2, 4)), *configs("tiled_swapped", range(2, 7))]
    expected = [*configs("tiled", range(2, 6)), *configs("skinny", range(2, 4)), *configs("tiled_swapped", range(2, 6))]
    expected += [*configs("tiled", range(6, 9)), *configs("tiled_swapped", range(6, 7))]
    assert forms_first(order) == expected
    # One that shares a binary of the first four is there with it, however late it stands.
    late = Config("tiled", 64, 64, 64, 4, num_stages=3)
    assert forms_first([*order, late]) == [*expected[:20], late, *expected[20:]]
