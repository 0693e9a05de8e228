"""Tests of genkern.packing.m_ranges: a plan for any M is, for each M that it reaches, the plan of that M."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gemms import CLUSTER, FEW_ROWS, GEMV, SWAPPED, TILED, TMA_SWAPPED, WARP_SPECIALIZED_SWAPPED, taking

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Integer
from genkern.kernels.contract.expression import evaluate
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan, main_variant
from genkern.ops.op import get_op
from genkern.packing.m_ranges import MRange, lower_tiles, m_range
from genkern.runtime.bundles.untuned_m import Relatives

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(100, 200, 512)
CONFIGS = taking(PROBLEM)
COLUMN_MAJOR = taking(replace(PROBLEM, M=96, row_major_a=False)) + [
    config for config in taking(replace(PROBLEM, M=97, row_major_a=False)) if config.values.get("realigned")
]
ALL = (1, 10**5)


def plan_of(problem: GemmProblem, config: Config, any_m: bool) -> LaunchPlan:
    return launch_plan(product_of(problem, get_op(problem.op), "sm_90"), config, H200, any_m=any_m)


def numbers(plan: LaunchPlan, m: int, units: int) -> object:
    """Everything that is evaluated when a plan is used."""
    known = {"units": units, "M": m}
    launches = [
        (
            launch.programs(known),
            [evaluate(each.value, known) for each in launch.arguments if isinstance(each, Integer)],
            [
                replace(each, multiple_of=1)
                for each in launch.arguments
                if not isinstance(each, Integer) and hasattr(each, "multiple_of")
            ],
        )
        for launch in plan.launches
    ]
    return launches, plan.workspace_elements(known), [launch.cluster for launch in plan.launches]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@given(m=st.integers(1, 3000) | st.sampled_from([1, 16, 64, 65, 99, 101, 128]), units=st.integers(1, 200))
@settings(max_examples=25)
def test_a_plan_for_any_m_is_that_of_each(config: Config, m: int, units: int) -> None:
    """Grids, numbers and workspaces are those of the plan for that M alone, and no mask that it needs is missing."""
    require_alike(PROBLEM, config, m, units)


@pytest.mark.parametrize("config", COLUMN_MAJOR, ids=lambda config: config.name)
@given(steps=st.integers(-100, 400), divides=st.sampled_from([1, 2, 4, 8]), units=st.integers(1, 200))
@settings(max_examples=25)
def test_a_plan_for_any_m_with_a_column_major_a_is_that_of_each(
    config: Config, steps: int, divides: int, units: int
) -> None:
    """For every M that is a multiple of the same power of two: what the kernels are promised of it is so."""
    problem = replace(PROBLEM, M=96 + divides % 8, row_major_a=False)
    if legal(problem, config, H200):
        return
    relatives = Relatives.of(problem)
    assert relatives.divides == divides
    m = problem.M + steps * relatives.step
    if m > 0:
        assert Relatives.of(replace(problem, M=m)) == relatives
        require_alike(problem, config, m, units)


def require_alike(problem: GemmProblem, config: Config, m: int, units: int) -> None:
    """Whatever a plan for any M says of this one, the plan for it alone says too."""
    found = m_range(problem, config, H200, ALL)
    assert found.least_m <= problem.M <= found.most_m
    there = replace(problem, M=m)
    if not found.least_m <= m <= found.most_m:
        return
    assert found.kernels_of == problem or plan_of(found.kernels_of, config, True).keeps_promises(m)
    assert not legal(there, config, H200)
    assert numbers(plan_of(found.kernels_of, config, True), m, units) == numbers(
        plan_of(there, config, False), m, units
    )
    taken, needed = main_variant(found.kernels_of, config), main_variant(there, config)
    assert taken.mask_m >= needed.mask_m
    assert replace(taken, name="", mask_m=False) == replace(needed, name="", mask_m=False)


def test_reach_ends_where_legality_does() -> None:
    """One row for gemv, as many as fit for skinny, neighbours for the others."""
    ends = []
    for config, m in ((GEMV, 1), (replace(FEW_ROWS, SPLIT_K=1), 3), (TILED, 100)):
        found = m_range(replace(PROBLEM, M=m), config, H200, (2 if m > 1 else 1, 4000))
        ends.append((found.least_m, found.most_m))
        for outside in (found.least_m - 1, found.most_m + 1):
            there = replace(PROBLEM, M=max(outside, 1))
            inside = 2 <= outside <= 4000
            same = main_variant(there, config).rows == main_variant(replace(PROBLEM, M=m), config).rows
            assert not inside or legal(there, config, H200) or not same
    assert ends[2] == (2, 4000)
    assert ends[0] == (1, 1)


def test_a_column_major_a_reaches_its_like() -> None:
    """Kernels that are promised no more than all of these are: 16 bytes, less where M is odd or twice an odd number."""
    for m, dtype, found in (
        (96, "bf16", (8, 3000, 104)),
        (104, "bf16", (8, 3000, 104)),
        (100, "bf16", (4, 2996, 100)),
        (97, "bf16", (1, 2999, 97)),
        (64, "bf16", (8, 3000, 72)),
        (64, "int8", (16, 2992, 80)),
        (64, "fp32", (4, 3000, 68)),
    ):
        op = "a8w8" if dtype == "int8" else "a16w16"
        out = "bf16" if dtype == "int8" else dtype
        problem = GemmProblem(m, 200, 512, op, dtype, dtype, out, row_major_a=False)
        reached = m_range(problem, TILED, H200, (1, 3000))
        assert (reached.least_m, reached.most_m, reached.kernels_of.M) == found
    # No row of tiles that are lower than what divides M overhangs.
    lower = replace(SWAPPED, BLOCK_SIZE_M=8)
    assert m_range(replace(PROBLEM, M=104, row_major_a=False), lower, H200, ALL) == MRange(
        8, 10**5, replace(PROBLEM, M=104, row_major_a=False)
    )


LOWER = {
    WARP_SPECIALIZED_SWAPPED: [(18, 32), (33, 48), (49, 64), (65, 80), (81, 96)],
    replace(CLUSTER, BLOCK_SIZE_M=104): [(18, 32), (33, 48), (49, 64), (65, 80), (81, 96)],
    replace(TMA_SWAPPED, BLOCK_SIZE_M=128): [(18, 32), (33, 64)],
}


@pytest.mark.parametrize("config", LOWER, ids=lambda config: config.name)
def test_lower_tiles_fit_fewer_rows(config: Config) -> None:
    """As many kinds of tile as the family has, each legal for its M and hardly higher than these."""
    found = lower_tiles(PROBLEM, config, H200, 18)
    assert [(reached.least_m, reached.most_m) for _, reached in found] == LOWER[config]
    for lower, reached in found:
        assert lower == replace(config, BLOCK_SIZE_M=reached.most_m)
        for m in (reached.least_m, reached.most_m):
            assert not legal(replace(PROBLEM, M=m), lower, H200)
            assert main_variant(reached.kernels_of, lower).mask_m >= main_variant(replace(PROBLEM, M=m), lower).mask_m


def test_what_has_no_lower_tiles() -> None:
    """Other loads read what is there and no more; several rows of tiles are cut otherwise; no M is below the least."""
    assert lower_tiles(PROBLEM, replace(TILED, BLOCK_SIZE_M=128), H200, 1) == []
    assert lower_tiles(replace(PROBLEM, M=200), WARP_SPECIALIZED_SWAPPED, H200, 1) == []
    assert lower_tiles(PROBLEM, WARP_SPECIALIZED_SWAPPED, H200, 100) == []
