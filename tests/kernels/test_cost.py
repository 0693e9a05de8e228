"""Tests of genkern.kernels.contract.cost: the terms that each form gives, and that the predictor reads these alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from forms import CUTE_FORMS, FORMS, RINGS, made

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels import catalogue
from genkern.kernels.catalogue import FAMILIES
from genkern.kernels.contract.cost import EDGES, SWAPPED_EDGES, Cost, TileWave
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.product import product_of
from genkern.kernels.specs import call_of
from genkern.ops.op import get_op
from genkern.search.cost_model.predict import predict_us

H200, B200 = gpu_for_arch("sm_90"), gpu_for_arch("sm_100")
RESOURCES = Resources(registers=64, shared_bytes=32_768)


def turn_of(stem: str) -> TileWave:
    tile_wave = FORMS[stem].cost.tile_wave
    assert tile_wave is not None
    return tile_wave


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        # Tiles along M and along N, programs of a tile, programs; whether stores go by TMA, and are hidden; the step.
        ("cute_ping_pong_2x1", (2, 1, 1, 2, True, True, 8)),
        ("cute_cooperative_1x2_direct", (1, 2, 1, 2, False, False, 8)),
        ("cute_ping_pong_swapped_1x2", (1, 2, 1, 2, True, True, 8)),
        ("cute_tcgen05_4x1", (4, 1, 1, 4, True, True, 32)),
        ("cute_tcgen05_2cta_4x2_direct", (2, 2, 2, 8, False, True, 32)),
    ],
)
def test_programs_that_share_a_tile_halve_the_tiles_along_m(stem: str, expected: tuple[object, ...]) -> None:
    """Of two programs that share a tile a cluster has half as many along M as it has programs there."""
    tile_wave = turn_of(stem)
    places = tile_wave.tiles_m, tile_wave.tiles_n, tile_wave.programs_of_tile, tile_wave.programs
    assert (*places, tile_wave.tma_store, tile_wave.hides_stores, tile_wave.width_step) == expected
    assert tile_wave.swapped == ("swapped" in stem)


def test_the_instructions_rows_lie_along_m_or_n() -> None:
    """The instruction's rows are along M, or in swapped forms along N."""
    for stem, sides in (("cute_ping_pong", (1, 2)), ("cute_ping_pong_swapped", (2, 1)), ("cute_tcgen05", (1, 2))):
        assert turn_of(stem).sides(1, 2) == sides


def test_all_of_cute_have_a_turn() -> None:
    """Without one they would be kept by every rule, and predicted as programs of one tile each; others have none."""
    assert {stem for stem, traits in FORMS.items() if traits.cost.tile_wave} == set(CUTE_FORMS)
    for stem in CUTE_FORMS:
        tile_wave, traits = turn_of(stem), FORMS[stem]
        assert (tile_wave.tiles_m, tile_wave.tiles_n) == traits.cluster
        assert tile_wave.programs == tile_wave.tiles_m * tile_wave.tiles_n * tile_wave.programs_of_tile
        assert (tile_wave.tma_store, tile_wave.swapped) == (traits.stores_tma, traits.swapped)


def test_units_in_clusters() -> None:
    """An H200 has 120 SMs in clusters of four (measured); a B200 is taken to leave some over (never asked)."""
    assert turn_of("cute_ping_pong_2x2").units(132) == 120
    assert turn_of("cute_cooperative_2x4_direct").units(132) == 120
    assert turn_of("cute_cooperative_1x2").units(132) == 132
    assert turn_of("cute_tcgen05_2x1").units(148) == 148
    assert turn_of("cute_tcgen05_2cta_2x2").units(148) == 131


def test_clusters_at_once() -> None:
    """As many as those SMs have room for, and one at least."""
    assert turn_of("cute_ping_pong_2x2").at_once(132) == 30
    assert turn_of("cute_cooperative_1x2").at_once(132) == 66
    assert turn_of("cute_cooperative_2x4_direct").at_once(4) == 1


@pytest.mark.parametrize("stem", [stem for stem, traits in FORMS.items() if traits.splits_k])
def test_what_adds_up_splits(stem: str) -> None:
    """A kernel behind, where a call has one; else programs that count who has come, of every tile or of the last."""
    problem = GemmProblem(64, 512, 1024 + FORMS[stem].realigned)
    call = call_of(product_of(problem, get_op(problem.op), "sm_90"), made(stem, 64, 64, 64, SPLIT_K=3))
    behind, reduces = call.kernels[FORMS[stem].kernels_before + 1 :], FORMS[stem].cost.reduces
    assert (len(behind) == 1) == (reduces == "kernel")
    assert (call.counters != 0) == (reduces in ("semaphore", "shares"))
    assert (stem in RINGS) == (reduces == "shares")


def test_edges_of_instructions() -> None:
    """Swapped, a tile of 8 rows is whole; without a matrix instruction there is nothing to pad up to."""
    for stem, traits in FORMS.items():
        if traits.cost.tile_wave is None and traits.uses_dot:
            short = traits.swapped or traits.reads == "registers"
            assert traits.cost.edges == (SWAPPED_EDGES if short else EDGES), stem
    assert FORMS["skinny"].cost == Cost((1, 1), vector=True, reduces="semaphore")


@pytest.fixture
def priced() -> Iterator[str]:
    """A family of someone's own, as tiled is, whose cost a test sets."""
    catalogue.add(Family("tiled_priced", FORMS["tiled"]))
    yield "tiled_priced"
    del FAMILIES["tiled_priced"]


def priced_us(family: str, cost: Cost, problem: GemmProblem, tile: tuple[int, int, int], split_k: int = 1) -> float:
    """What such a config is predicted to take with this cost."""
    catalogue.add(Family(family, replace(FORMS["tiled"], stem=family, cost=cost)))
    return predict_us(problem, Config(family, *tile, SPLIT_K=split_k), RESOURCES, H200)


def test_the_predictor_adds_up_what_a_family_says(priced: str) -> None:
    """Whatever its name is: alike where the terms are alike, and otherwise by what the terms say."""
    problem, few = GemmProblem(4096, 4096, 4096), GemmProblem(8, 4096, 8192)
    same = predict_us(problem, Config("tiled", 64, 64, 64), RESOURCES, H200)
    assert priced_us(priced, Cost(), problem, (64, 64, 64)) == same
    assert priced_us(priced, Cost(vector=True), problem, (64, 64, 64)) > 2 * same
    # Rows up to an edge are multiplied, and paid.
    large = GemmProblem(8192, 8192, 1024)
    padded, whole = (priced_us(priced, Cost(edges, True), large, (8, 64, 64)) for edges in (EDGES, SWAPPED_EDGES))
    assert padded > 1.5 * whole
    # Of a tiny C a kernel behind costs more than waiting for one another.
    behind, waiting = (
        priced_us(priced, Cost(reduces=reduces), few, (16, 64, 64), 4) for reduces in ("kernel", "semaphore")
    )
    assert behind > waiting
    # Whole waves of clusters, in place of programs of one tile each.
    tile_wave = turn_of("cute_cooperative")
    turned = priced_us(priced, Cost(tile_wave=tile_wave), problem, (128, 128, 64))
    one_more = priced_us(
        priced, Cost(tile_wave=replace(tile_wave, units=lambda units: units // 2)), problem, (128, 128, 64)
    )
    assert one_more > 1.5 * turned
