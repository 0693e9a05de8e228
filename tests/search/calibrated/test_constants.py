"""Tests of search/calibrated/constants.py: who counts with what."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.calibrated.constants import constants_for, counting_with, ranges, shipped_constants
from genkern.search.guided.features import features_of

MI300X = gpu_for_arch("gfx942")
SLOW = replace(shipped_constants(MI300X), latency_us=3.0, kernel_us=8.0)


def test_a_learned_model_sees_the_shipped_constants() -> None:
    """It was learned with them; what has no model goes by the fitted ones."""
    problem, configs = GemmProblem(16, 4096, 4096), [Config("tiled", 16, 64, 128)]
    shipped = features_of(problem, configs, MI300X)["log_physics"]
    with counting_with(SLOW):
        assert features_of(problem, configs, MI300X)["log_physics"] == shipped
        assert features_of(problem, configs, MI300X, shipped=False)["log_physics"] > shipped


def test_given_constants_hold_for_a_while() -> None:
    """Also where what counts with them fails."""
    with contextlib.suppress(ValueError), counting_with(SLOW):
        assert constants_for(MI300X) == SLOW
        raise ValueError
    assert constants_for(MI300X) == shipped_constants(MI300X)


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_shipped_constants_are_in_the_ranges_of_a_fit(arch: str) -> None:
    """A fit starts from them, and a file that keeps them is a valid one."""
    shipped = asdict(shipped_constants(gpu_for_arch(arch)))
    assert all(least <= shipped[name] <= most for name, (least, most) in ranges().items())
    assert shipped.keys() == ranges().keys()
