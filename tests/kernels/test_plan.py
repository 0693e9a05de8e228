"""Tests of genkern.kernels.plan: a plan is whole as JSON, and nothing else is read as one.

That plans say what is compiled and what generated modules launch is in test_specs.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_gemms import SEMAPHORE, SPLIT, TILED, TMA, WARP_SPECIALIZED_SPLIT

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Integer
from genkern.kernels.contract.expression import name
from genkern.kernels.contract.product import product_of
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op

PROBLEM = GemmProblem(128, 64, 256, bias=True)


def plan_of(config: Config) -> LaunchPlan:
    return launch_plan(product_of(PROBLEM, get_op(PROBLEM.op), "sm_90"), config, gpu_for_arch("sm_90"))


def damaged(change: Callable[[dict[str, Any]], object], config: Config = TMA) -> str:
    """A plan as JSON, with something else in it."""
    data = json.loads(plan_of(config).to_json())
    change(data)
    return json.dumps(data)


def test_units_decide_grid_and_workspace() -> None:
    """What hangs on the device is left open, and follows from the number of its units alone."""
    (launch,) = plan_of(TMA).launches
    assert [launch.programs({"units": units}) for units in (1, 2, 132)] == [(1, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert plan_of(SEMAPHORE).workspace_elements({}) == (4 * 3 * 64 * 32, 4)
    # One tile, which is beyond the last full wave: three programs share it.
    (shared,) = plan_of(WARP_SPECIALIZED_SPLIT).launches
    assert shared.programs({"units": 132}) == (3, 1, 1)


def test_only_what_adds_up_splits_starts_early() -> None:
    """The reduction may wait on the device for the splits (launch_pdl)."""
    assert [launch.starts_early for launch in plan_of(SPLIT).launches] == [False, True]
    assert [launch.starts_early for launch in plan_of(TILED).launches] == [False]


@pytest.mark.parametrize("multiple", [2, 4, 8, 16])
def test_an_m_that_kernels_cannot_rely_on_is_told(multiple: int) -> None:
    """A plan for any M serves those that are multiples of what its kernels were compiled for, and no other."""
    (launch,) = plan_of(TILED).launches
    rows = Integer("M", name("M"), multiple)
    plan = replace(plan_of(TILED), launches=(replace(launch, arguments=(*launch.arguments, rows)),))
    assert [m for m in range(1, 33) if plan.keeps_promises(m)] == [*range(multiple, 33, multiple)]


def _first(data: dict[str, Any]) -> Any:
    return data["launches"][0]["arguments"]


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another version": lambda data: data.update(version=1),
    "a field too many": lambda data: data.update(more=1),
    "no launches": lambda data: data.update(launches=[]),
    "an unknown dtype": lambda data: data.update(workspace_dtype="fp12"),
    "a launch that is a text": lambda data: data.update(launches=["launch"]),
    "two dimensions": lambda data: data["launches"][0].update(grid=[1, 1]),
    "an unknown name": lambda data: data["launches"][0].update(grid=["BLOCK_SIZE_M", 1, 1]),
    "no programs in a cluster": lambda data: data["launches"][0].update(cluster=0),
    "a symbol that is no name": lambda data: data["launches"][0].update(symbol="a b"),
    "an unknown kind": lambda data: _first(data)[0].update(kind="descriptors"),
    "a descriptor without a box": lambda data: _first(data)[0].pop("box"),
    "a box of no rows": lambda data: _first(data)[0].update(box=[0, 64]),
    "an operand that is no name": lambda data: _first(data)[0].update(operand="__import__('os')"),
    "a number that is a text": lambda data: _first(data)[-1].update(value=1.5),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_plan_is_refused(damage: str) -> None:
    """Anything that to_json does not give is an error of one line."""
    assert LaunchPlan.from_json(damaged(lambda data: None)) == plan_of(TMA)
    with pytest.raises(InputError) as refused:
        LaunchPlan.from_json(damaged(DAMAGES[damage]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    """Neither is what cannot be read at all."""
    with pytest.raises(InputError, match="is no launch plan"):
        LaunchPlan.from_json(text)


def test_what_else_a_plan_may_hang_on() -> None:
    """Names of parameters that only the family's own process knows, where whoever reads it says so."""
    text = damaged(lambda data: data["launches"][0].update(grid=["chunk", 1, 1]))
    with pytest.raises(InputError, match="'chunk' is no number"):
        LaunchPlan.from_json(text)
    assert LaunchPlan.from_json(text, ["chunk"]).hangs_on == {"chunk"}
