"""Tests of genkern/search/limit.py: what --budget says, and which units fit into so many binaries."""

from __future__ import annotations

import pytest

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.search.limit import Allowance, Limit
from genkern.search.strategy import Unit

UNITS = [Unit((Config("tiled", 64, 64, 64, 8, num_warps=4, num_stages=stages),)) for stages in range(2, 8)]
OTHER_GROUP = Unit((UNITS[0].configs[0].with_values(GROUP_SIZE_M=1),))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("30s", Limit(seconds=30.0, said="30s")),
        ("2.50s", Limit(seconds=2.5, said="2.5s")),
        ("200", Limit(binaries=200, said="200")),
        ("0200", Limit(binaries=200, said="200")),
    ],
)
def test_what_a_budget_says(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit
    assert Limit.parse(limit.said) == limit


@pytest.mark.parametrize("text", ["", "0", "0s", "0.05s", "-3", "1.5", "30 s", "30m", "1e9", "86401s", "9" * 50, "s"])
def test_what_is_no_budget_is_said(text: str) -> None:
    """In one short line."""
    with pytest.raises(InputError, match=r"0\.1s to 86400s.* 1 to 1000000") as caught:
        Limit.parse(text)
    assert len(str(caught.value)) < 150


def test_so_many_binaries_fit() -> None:
    """Another unit of a binary that counts costs nothing; the rest waits, and the strategy is asked no more."""
    allowance = Allowance(3, [UNITS[5].compiled])
    assert allowance.left == 2
    named = [*UNITS[:2], OTHER_GROUP, UNITS[2]]
    assert allowance.take(2, lambda n: named[:n]) == UNITS[:2]
    assert (allowance.left, allowance.leaves_out) == (0, False)
    assert allowance.take(9, lambda n: named[2:]) == [OTHER_GROUP]
    assert allowance.leaves_out
    assert allowance.take(9, lambda n: pytest.fail("something waits")) == []


def test_a_refused_one_makes_room() -> None:
    """And one that is dropped before it is measured; nothing that was measured does."""
    allowance = Allowance(2, [])
    assert allowance.take(9, lambda n: UNITS) == UNITS[:2]
    allowance.measured(UNITS[0])
    allowance.unmeasured(UNITS[0])
    assert allowance.take(9, lambda n: []) == []
    allowance.unmeasured(UNITS[1])
    assert allowance.take(9, lambda n: []) == UNITS[2:3]


def test_what_waits_may_be_dropped() -> None:
    """By whoever asked for it; of the others, somebody else knows."""
    allowance = Allowance(1, [])
    assert allowance.take(9, lambda n: UNITS[:3]) == UNITS[:1]
    assert allowance.forget(UNITS[:2]) == UNITS[:1]
    allowance.unmeasured(UNITS[0])
    assert allowance.take(9, lambda n: []) == UNITS[2:3]
    assert not allowance.leaves_out


def test_without_a_limit_all_fit() -> None:
    allowance = Allowance(None, [])
    assert allowance.take(9, lambda n: UNITS) == UNITS
    assert (allowance.left, allowance.leaves_out) == (None, False)
