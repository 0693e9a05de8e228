"""Tests of profiling/loaded_gemm.py that need no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_gemms import SEMAPHORE, make_module, taking

from genkern.gemm.problem import GemmProblem
from genkern.profiling.loaded_gemm import LoadedGemm, rotating_copies


@given(st.integers(1, 2**40), st.floats(0.001, 65_536))
def test_copies_exceed_the_size_asked_for_and_no_more(bytes_per_copy: int, rotating_mb: float) -> None:
    """Together they reach `rotating_mb` MiB with the fewest copies, up to 512 of them."""
    copies = rotating_copies(bytes_per_copy, rotating_mb)
    wanted = int(rotating_mb * 2**20)
    assert 1 <= copies <= 512
    assert copies * bytes_per_copy >= wanted or copies == 512
    assert copies == 1 or (copies - 1) * bytes_per_copy < wanted


@given(st.integers(1, 2**40))
def test_zero_turns_rotation_off(bytes_per_copy: int) -> None:
    """One copy, which stays warm."""
    assert rotating_copies(bytes_per_copy, 0) == 1


def test_configs_share_a_workspace_that_is_large_enough(tmp_path: Path) -> None:
    """Whatever was bound before, a config finds what it needs, and counters that were never anything but zero."""
    pytest.importorskip("torch")
    problem = GemmProblem(48, 96, 512)
    _, module = make_module(tmp_path, problem, taking(problem), "sm_90")
    gemm = LoadedGemm.__new__(LoadedGemm)
    gemm.module, gemm.units, gemm.operands = module, 5, module.make_operands("cpu")
    gemm._workspace, gemm._elements, gemm._counters = {}, 0, 0
    for config in [*module.CONFIGS.values(), *reversed(module.CONFIGS.values())]:
        operands = gemm._with_workspace(config)
        elements, counters = module.workspace_elements(config, gemm.units)
        assert elements == 0 or operands["workspace"].numel() >= elements
        assert counters == 0 or operands["counters"].numel() >= counters
        assert "counters" not in operands or not operands["counters"].any()
        assert module.launches(config, operands, gemm.units)


@pytest.mark.parametrize("op", ["a16w16", "a8w8"])
def test_a_spoiled_workspace_says_nothing_of_earlier_calls(tmp_path: Path, op: str) -> None:
    """Every partial sum is NaN, or a large number where sums are integers; the counters stay at zero."""
    pytest.importorskip("torch")
    types = ("int8", "int8", "bf16") if op == "a8w8" else ("bf16", "bf16", "bf16")
    _, module = make_module(tmp_path, GemmProblem(48, 96, 512, op, *types), [SEMAPHORE], "sm_90")
    gemm = LoadedGemm.__new__(LoadedGemm)
    gemm.module, gemm.units, gemm.operands = module, 5, module.make_operands("cpu")
    gemm._workspace, gemm._elements, gemm._counters = {}, 0, 0
    gemm.spoil_workspace()
    operands = gemm._with_workspace(module.CONFIGS[SEMAPHORE.name])
    operands["workspace"].zero_()
    gemm.spoil_workspace()
    spoiled = operands["workspace"]
    assert bool((spoiled.abs() > 2**29).all() if op == "a8w8" else spoiled.isnan().all())
    assert not operands["counters"].any()
