"""Rings of the kernels in Gluon that tiles' K-blocks do not fit: what the kernel begins, where each tile goes on."""

from __future__ import annotations

import pytest
from gluon_cases import SHARING, SIDE_BY_SIDE, assert_exact, block_scaled, fp16_problem, made, product
from gluon_groups import assert_groups_exact, group_product, grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import in_turns, repeats

from genkern.kernels.family import FAMILIES, GLUON

pytestmark = pytest.mark.usefixtures("for_clusters")
PROMOTES = [name for name, family in FAMILIES.items() if family.promotes and family.in_gluon]
# So many buffers, filled so many at a time.
RINGS = [(2, 1), (5, 1), (6, 2), (7, 1), (8, 2)]


def k_blocks(buffers: int) -> list[int]:
    """Of a tile: fewer than the kernel may begin, as many, more; up to the ring's last buffer, and round it twice."""
    return sorted({1, 3, 4, 5, buffers - 1, buffers, buffers + 1, 2 * buffers + 1} - {0})


@pytest.mark.parametrize(("buffers", "together"), RINGS)
@pytest.mark.parametrize("family", PROMOTES)
def test_scales_come_with_their_buffers(family: str, buffers: int, together: int) -> None:
    """Of several tiles a program, whose scales the copy engine takes, or lanes copy, where rows are no fours."""
    cluster = FAMILIES[family].cluster
    config = made(family, 64, 48, 1, 4, buffers // together, 2, 2 * together)
    # Of as many K-blocks, large clusters take longest, and begin no other way than small ones.
    share = 3 if cluster == 1 else max(4, cluster)
    turn = PROMOTES.index(family) + buffers
    for m in (140, 139) if cluster == 1 else (44, 43):
        for blocks in in_turns(k_blocks(buffers), share, turn + m):
            problem = block_scaled(m, 104, 128 * blocks * cluster - 48)
            assert_exact(product(problem, config, 2, seed=blocks, largest=2))


@pytest.mark.parametrize(("buffers", "together"), RINGS)
@pytest.mark.parametrize("family", GLUON)
def test_buffers_come_one_by_one(family: str, buffers: int, together: int) -> None:
    """The same where products are added up as they are."""
    facts = FAMILIES[family]
    together = 1 if family in SIDE_BY_SIDE else together
    config = made(family, 64, 48, 1, 4, buffers // together, 2, together)
    share = facts.cluster if family not in SIDE_BY_SIDE else 1
    for blocks in in_turns(k_blocks(buffers), 4, GLUON.index(family) + buffers):
        problem = fp16_problem(140 if share == 1 else 44, 104, 64 * blocks * share - 24, dtype_c="fp32")
        assert_exact(product(problem, config, 2, seed=blocks))


@pytest.mark.parametrize(("buffers", "together"), RINGS)
@pytest.mark.parametrize("promotes", [True, False])
@pytest.mark.parametrize("family", [name for name in GLUON if FAMILIES[name].groups])
def test_groups_go_on_where_others_end(family: str, promotes: bool, buffers: int, together: int) -> None:
    """The first tile of a program may be any group's, and so may the next; swapped, each in its own way of scales."""
    counts = [0, 65, 3, 0, 64, 52]
    own = [("scales", "blocks")] if promotes else []
    config = made(family, 64, 48, 1, 4, buffers // together, 1, together * (2 if promotes else 1))
    for blocks in in_turns(k_blocks(buffers), 4, GLUON.index(family) + buffers + promotes):
        k = (128 if promotes else 64) * blocks - 16
        problem = grouped(sum(counts), 72, k, len(counts), "fp8e4m3fn" if promotes else "fp16", own)
        assert_groups_exact(group_product(problem, config, 2, counts, seed=blocks))


@settings(max_examples=repeats(15, 60), deadline=None)
@given(
    promotes=st.booleans(),
    family=st.sampled_from(SHARING),
    ring=st.sampled_from(RINGS),
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
