"""Rings of the kernels in Gluon that tiles' K-blocks do not fit: what the kernel begins, where each tile goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from forms import FORMS, RINGS
from gluon_cases import SHARING, SIDE_BY_SIDE, assert_exact, block_scaled, fp16_problem, made, product
from gluon_groups import assert_groups_exact, group_product, grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import drawn, in_turns, repeats

# Rows and columns of several tiles for a program, and of one tile for a cluster, whose programs have no second one.
TILED, ALONE = (140, 88), (44, 60)
PROMOTES = [name for name in RINGS if FORMS[name].reads == "promoted"]
# So many buffers, filled so many at a time.
DEPTHS = [(2, 1), (5, 1), (6, 2), (7, 1), (8, 2)]


def k_blocks(buffers: int) -> list[int]:
    """Of a tile: fewer than the kernel may begin, as many, more; up to the ring's last buffer, and round it twice."""
    return sorted({1, 4, 5, buffers - 1, buffers, buffers + 1, 2 * buffers + 1})


TILES = [(ring, blocks) for ring in DEPTHS for blocks in k_blocks(ring[0])]


def dealt(ways: Sequence[tuple[Any, ...]], part: int) -> list[tuple[Any, ...]]:
    """Tiles with each of these, which have half of all between them, this part, each the same number, spread over them.

    In `make test-long` each has all.
    """
    tiles = in_turns(TILES, 2, part)
    return [(*way, *tile) for turn, way in enumerate(ways) for tile in in_turns(tiles, len(ways), turn)]


TAKEN = dealt([(family,) for family in PROMOTES], 0)
COPIED = dealt([(family,) for family in PROMOTES if "swapped" in family], 1)
PLAIN = dealt([(family,) for family in RINGS], 0)
GROUPED = dealt([(family, promotes) for family in RINGS if FORMS[family].groups for promotes in (True, False)], 1)


def assert_scaled_exact(family: str, ring: tuple[int, int], blocks: int, odd: bool) -> None:
    """Of several tiles a program; in clusters, of one."""
    (buffers, together), cluster = ring, FORMS[family].cluster_k
    config = made(family, 64, 48, 1, 4, buffers // together, 2, 2 * together)
    m, n = TILED if cluster == 1 else ALONE
    problem = block_scaled(m - odd, n, 128 * blocks * cluster - 48)
    assert_exact(product(problem, config, 2, seed=blocks, largest=2))


@pytest.mark.parametrize(("family", "ring", "blocks"), drawn([*TAKEN], 6))
def test_scales_come_with_their_buffers(family: str, ring: tuple[int, int], blocks: int) -> None:
    """Scales that the copy engine takes: upright, those of any rows."""
    assert_scaled_exact(family, ring, blocks, "swapped" not in family and blocks % 2 == 1)


@pytest.mark.parametrize(("family", "ring", "blocks"), drawn([*COPIED], 6))
def test_scales_are_copied_beside_their_buffers(family: str, ring: tuple[int, int], blocks: int) -> None:
    """Scales that lanes copy, since rows are no fours."""
    assert_scaled_exact(family, ring, blocks, True)


@pytest.mark.parametrize(("family", "ring", "blocks"), drawn([*PLAIN], 6))
def test_buffers_come_one_by_one(family: str, ring: tuple[int, int], blocks: int) -> None:
    """The same where products are added up as they are."""
    buffers, together = ring
    share = FORMS[family].cluster_k if family not in SIDE_BY_SIDE else 1
    together = 1 if family in SIDE_BY_SIDE else together
    config = made(family, 64, 48, 1, 4, buffers // together, 2, together)
    m, n = TILED if share == 1 else ALONE
    problem = fp16_problem(m, n, 64 * blocks * share - 24, dtype_c="fp32")
    assert_exact(product(problem, config, 2, seed=blocks))


@pytest.mark.parametrize(("family", "promotes", "ring", "blocks"), drawn([*GROUPED], 6))
def test_groups_go_on_where_others_end(family: str, promotes: bool, ring: tuple[int, int], blocks: int) -> None:
    """The first tile of a program may be any group's, and so may the next; swapped, each in its own way of scales."""
    (buffers, together), counts = ring, [0, 65, 3, 0, 64, 52]
    own = [("scales", "blocks")] if promotes else []
    config = made(family, 64, 48, 1, 4, buffers // together, 1, together * (2 if promotes else 1))
    k = (128 if promotes else 64) * blocks - 16
    problem = grouped(sum(counts), 40, k, len(counts), "fp8e4m3fn" if promotes else "fp16", own)
    assert_groups_exact(group_product(problem, config, 2, counts, seed=blocks))


@settings(max_examples=repeats(10, 60), deadline=None)
@given(
    promotes=st.booleans(),
    family=st.sampled_from(SHARING),
    ring=st.sampled_from(DEPTHS),
    tiles=st.integers(1, 9),
    blocks=st.integers(1, 20),
    split_k=st.integers(2, 4),
    units=st.integers(1, 5),
    odd=st.booleans(),
)
def test_shares_begin_anywhere(
    promotes: bool, family: str, ring: tuple[int, int], tiles: int, blocks: int, split_k: int, units: int, odd: bool
) -> None:
    """Shares of tiles, of any number of K-blocks, before and behind whole tiles."""
    buffers, together = ring
    config = made(family, 64, 48, split_k, 4, buffers // together, 1, together * (2 if promotes else 1))
    m, n = (config.BLOCK_SIZE_M - odd, config.BLOCK_SIZE_N * tiles)
    problem = block_scaled(m, n, 128 * blocks - 16) if promotes else fp16_problem(m, n, 64 * blocks - 8)
    assert_exact(product(problem, config, units))
