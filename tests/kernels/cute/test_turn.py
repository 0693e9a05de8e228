"""Tests of genkern.kernels.cute.turn: what a cluster makes of C at a time, of every dense family."""

from __future__ import annotations

import pytest
from genkern.kernels.cute.turn import FAMILIES, Turn, shared_bytes, turn_of, units_in_clusters

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import CUTE
from genkern.kernels.cute import dense, dense_sm100


@pytest.mark.parametrize(
    ("family", "turn"),
    [
        ("cute_ping_pong_2x1", Turn(2, 1, 1, 2, True, True, 8)),
        ("cute_cooperative_1x2_direct", Turn(1, 2, 1, 2, False, False, 8)),
        ("cute_ping_pong_swapped_1x2", Turn(1, 2, 1, 2, True, True, 8, True)),
        ("cute_tcgen05_4x1", Turn(4, 1, 1, 4, True, True, 32)),
        ("cute_tcgen05_2cta_4x2_direct", Turn(2, 2, 2, 8, False, True, 32)),
        ("tiled", None),
    ],
)
def test_turn_of(family: str, turn: Turn | None) -> None:
    """Of two programs that share a tile a cluster has half as many along M as it has programs there."""
    assert turn_of(family) == turn


def test_sides() -> None:
    """The instruction's rows are along M, or in swapped families along N."""
    for family, sides in (("cute_ping_pong", (1, 2)), ("cute_ping_pong_swapped", (2, 1)), ("cute_tcgen05", (1, 2))):
        turn = turn_of(family)
        assert turn is not None
        assert turn.sides(1, 2) == sides


def test_all_families_have_one() -> None:
    """A family in CuTe DSL without a turn would be kept by every rule."""
    assert set(FAMILIES) == set(CUTE)
    assert all(turn_of(family) for family in FAMILIES)


def test_shared_memory_is_the_familys() -> None:
    """Of each architecture by its own formula."""
    problem = GemmProblem(4096, 4096, 4096)
    one, other = (
        Config("cute_wgmma", 128, 128, 64, 8, 1, 8, 4, schedule="ping_pong"),
        Config("cute_tcgen05", 128, 128, 64, 8, 1, 4, 4),
    )
    assert shared_bytes(problem, one) == dense.shared_bytes(problem, one)
    assert shared_bytes(problem, other) == dense_sm100.shared_bytes(problem, other)


def test_units_in_clusters() -> None:
    """An H200 has 120 SMs in clusters of four (measured); a B200 is taken to leave some over (never asked)."""
    assert units_in_clusters("cute_ping_pong_2x2", 132) == 120
    assert units_in_clusters("cute_cooperative_2x4_direct", 132) == 120
    assert units_in_clusters("cute_cooperative_1x2", 132) == 132
    assert units_in_clusters("cute_tcgen05_2x1", 148) == 148
    assert units_in_clusters("cute_tcgen05_2cta_2x2", 148) == 131
