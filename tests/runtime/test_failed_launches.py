"""Who serves after a launch has failed; test_dispatch.py has the rest of genkern.runtime.calls.implementation."""

from __future__ import annotations

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import winners_for
from test_dispatch import operands

from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.dispatch import Gemm


@pytest.mark.parametrize("family", ["tiled_tma", "tiled"])
@pytest.mark.parametrize("first", [5, 0], ids=["in a graph", "eager"])
def test_after_one_failure_the_library_serves(
    gemm: Gemm, gpu: FakeGpu, bundle: Bundle, first: int, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls that go into a graph and eager ones, whichever failed: nothing of that winner is launched any more."""
    winner = next(each for each in winners_for(bundle, "sm_90") if each.config_name.startswith(f"{family}_BM"))
    x, weight = operands(winner.problem.M, winner.problem.N)
    gemm(x, weight)
    assert gpu.driver.launched
    gpu.driver.fails, gpu.driver.capturing = True, first
    assert torch.equal(gemm(x, weight), torch.nn.functional.linear(x, weight))
    gpu.driver.fails = False
    gpu.driver.launched.clear()
    for gpu.driver.capturing in (0, 5):
        assert torch.equal(gemm(x, weight), torch.nn.functional.linear(x, weight))
    assert gpu.driver.launched == []
    assert capsys.readouterr().err.count("the library serves it") <= 1
