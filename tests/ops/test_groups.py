"""Tests of genkern.ops.groups: how rows are shared among weights, and how many tiles that takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from genkern.ops.groups import NO_GROUPS, Groups

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("skewed", [False, True])
def test_every_token_has_different_groups(skewed: bool) -> None:
    """As many as it is to have; slots are all there once, by group, and where groups end is where their slots do."""
    groups = Groups(16, 4, gathered=True, skewed=skewed, seed=3)
    index, order = groups.operands(50)
    ends, slots = groups.values(50, index), groups.values(50, order)
    assert (ends.dtype, slots.dtype) == (torch.int32, torch.int32)
    assert sorted(slots.tolist()) == list(range(200))
    assert ends[-1] == 200
    of_slot = torch.searchsorted(ends, torch.arange(200), right=True)
    chosen = torch.empty(200, dtype=torch.int64).scatter_(0, slots.long(), of_slot).view(50, 4)
    assert all(len(set(row)) == 4 for row in chosen.tolist())


def test_skewed_is_not_even() -> None:
    """The most popular group has several times its share; another seed has another one; the same gives the same."""

    def rows(**more: object) -> list[int]:
        groups = Groups(8, capacity=4000, **more)  # type: ignore[arg-type]
        return groups.values(4000, groups.operands(4000)[0]).tolist()

    even, skewed, other = rows(), rows(skewed=True), rows(skewed=True, seed=9)
    assert (sum(even), sum(skewed)) == (4000, 4000)
    assert max(even) < 1.2 * 500 < 2 * 500 < max(skewed)
    assert skewed != other
    assert skewed == rows(skewed=True)


@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize("skewed", [False, True])
def test_there_are_never_more_tiles_than_that(block_m: int, skewed: bool) -> None:
    """However rows are shared; and the estimate for even ones is near."""
    for tokens, top_k in ((1, 1), (1, 4), (33, 2), (1000, 4)):
        groups = Groups(32, top_k, summed=True, skewed=skewed, seed=tokens)
        ends = groups.values(tokens, groups.operands(tokens)[0])
        counts = torch.diff(ends, prepend=torch.zeros(1, dtype=ends.dtype))
        tiles = int((-(-counts // block_m)).sum())
        assert tiles <= groups.most_tiles(tokens, block_m)
        if not skewed:
            assert abs(tiles - groups.expected_tiles(tokens, block_m)) <= 0.1 * tiles + 1
            assert sorted(counts.tolist())[-4] <= groups.usual_rows(tokens)


@pytest.mark.parametrize("block_m", [32, 40, 48, 128])
def test_groups_that_have_a_row_more_take_a_tile_more(block_m: int) -> None:
    """With 32 rows on average half of the groups have more, which tiles of 40 rows still cover: as often as drawn."""
    groups = Groups(16, capacity=256)
    tiles = 0
    for seed in range(20):
        counts = replace(groups, seed=seed).values(512, groups.operands(512)[0])
        tiles += int((-(-counts // block_m)).sum())
    assert tiles / 20 == pytest.approx(groups.expected_tiles(512, block_m), rel=0.06)


def test_capacity_bounds_rows() -> None:
    """A group has no more rows than there is memory for, however popular it is."""
    groups = Groups(4, capacity=30, skewed=True)
    assert max(groups.values(120, groups.operands(120)[0]).tolist()) == 30
    assert (groups.rows(120), groups.most_tiles(120, 16), groups.index) == (120, 8, "counts")


def test_what_is_refused() -> None:
    """More groups of a token than there are, rows without memory, and more than anyone draws."""
    assert "cannot have rows in 5 groups" in Groups(4, 5).refusal(1)
    assert "no room for 9 rows" in Groups(4, capacity=2).refusal(9)
    assert "rows times groups" in Groups(1024).refusal(2**20)
    assert not Groups(4, 4, capacity=9).refusal(9)
    assert not NO_GROUPS
