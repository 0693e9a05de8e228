"""Tests of genkern/tuning/invariant: what follows from an order that is asked for, and its reference."""

from __future__ import annotations

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.timing.libraries import VENDOR, StoredAlgorithm
from genkern.tuning.invariant.reference import reference_of
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint, fastest_by_order, loss

GPU = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 4096, 4096)
FP8 = GemmProblem(64, 4096, 4096, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16")
PLAIN, SPLIT, FEW = (
    made("tiled", 64, 64, 64, 1, 1, 4, 3),
    made("tiled", 64, 64, 64, 1, 2, 4, 3),
    made("gemv", 1, 4, 512, 1, 1, 4, 1),
)
WHOLE, PARTS = "wgmma k16", "wgmma k16; 2 parts of 2048"
ALGORITHM = StoredAlgorithm(131000, bytes(64)).name


def measured(config: Config, us: float) -> Measurement:
    return Measurement(config.name, Outcome.MEASURED, "cudagraph", duration_us=us)


def test_what_may_win() -> None:
    """A config of the order, and a library's algorithm that bits have shown to be of it; PyTorch's own call not."""
    orders = SumOrderConstraint({PROBLEM: WHOLE})
    assert orders.may_win(PROBLEM, PLAIN.name, "sm_90")
    assert not orders.may_win(PROBLEM, SPLIT.name, "sm_90")
    assert orders.may_win_call(PROBLEM, ALGORITHM, {ALGORITHM: WHOLE})
    assert not orders.may_win_call(PROBLEM, ALGORITHM, {ALGORITHM: PARTS})
    assert not orders.may_win_call(PROBLEM, ALGORITHM, {})
    assert not orders.may_win_call(PROBLEM, VENDOR, {VENDOR: WHOLE})
    assert ANY_ORDER.may_win(PROBLEM, SPLIT.name, "sm_90")
    assert ANY_ORDER.may_win_call(PROBLEM, VENDOR, {})
    assert orders.required_configs(PROBLEM, GPU) == [reference_of(PROBLEM, WHOLE, GPU)]
    assert ANY_ORDER.required_configs(PROBLEM, GPU) == []


def test_the_fastest_of_each_order() -> None:
    """Of those whose binaries are there; orders of one config's kernels are compared with no library."""
    ready = {config.name: Candidate(config, ()) for config in (PLAIN, SPLIT, FEW)}
    slower = PLAIN.with_values(GROUP_SIZE_M=8)
    times = [measured(SPLIT, 5), measured(slower, 9), measured(PLAIN, 7), measured(FEW, 1)]
    found = fastest_by_order(PROBLEM, times, ready, "sm_90")
    assert [(order, each.config) for order, each in found.items()] == [(PARTS, SPLIT), (WHOLE, PLAIN)]


def test_the_loss_is_against_the_fastest_timed_config() -> None:
    """Against the fastest of those that were timed; of what is itself the fastest, nothing."""
    assert loss(measured(PLAIN, 11), [measured(SPLIT, 10), None, measured(FEW, 20)]) == pytest.approx(0.1)
    assert loss(measured(PLAIN, 9), [measured(SPLIT, 10)]) == 0.0
    assert loss(None, []) is None
