"""Tests of genkern/tuning/invariant: what follows from an order that is asked for, and its reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal
from genkern.space.prune import explain, prune
from genkern.space.space import FamilySpace, Space, load_space
from genkern.timing.libraries import VENDOR, KeptAlgorithm
from genkern.tuning.invariant.orders import ANY_ORDER, Orders, fastest_by_order, loss
from genkern.tuning.invariant.reference import reference_of

GPU = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 4096, 4096)
FP8 = GemmProblem(64, 4096, 4096, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16")
PLAIN, SPLIT, FEW = (
    made("tiled", 64, 64, 64, 1, 1, 4, 3),
    made("tiled", 64, 64, 64, 1, 2, 4, 3),
    made("gemv", 1, 4, 512, 1, 1, 4, 1),
)
WHOLE, PARTS = "wgmma k16", "wgmma k16; 2 parts of 2048"
ALGORITHM = KeptAlgorithm(131000, bytes(64)).name


def measured(config: Config, us: float) -> Measurement:
    return Measurement(config.name, Outcome.MEASURED, "cudagraph", duration_us=us)


@pytest.mark.parametrize(
    ("problem", "order"),
    [
        (PROBLEM, WHOLE),
        (PROBLEM, PARTS),
        (PROBLEM, "wgmma k16; 3 parts: 2 x 1408 + 1280"),
        (PROBLEM, "mma k16"),
        (FP8, "wgmma k32; scaled every 128"),
        (FP8, "wgmma k32; scaled every 64"),
    ],
)
def test_an_order_has_a_reference(problem: GemmProblem, order: str) -> None:
    """A config of tune_gemm's family, legal whatever M, of that order."""
    found = [reference_of(GemmProblem(m, *vars_of(problem)), order, GPU) for m in (1, 64, 4096)]
    assert len(set(found)) == 1
    (config,) = set(found)
    assert config is not None
    assert sums_of(problem, config, "sm_90") == order
    assert not legal(problem, config, GPU)


def vars_of(problem: GemmProblem) -> tuple[int, int, str, str, str, str]:
    return problem.N, problem.K, problem.op, problem.dtype_a, problem.dtype_b, problem.dtype_c


def test_orders_of_other_kernels_have_none() -> None:
    """Of lanes, of another language's finish, of parts that no plain kernel makes."""
    for order in ("lanes; as gemv", "wgmma k32; cute finish", "wgmma k16; 500 parts of 8", "wgmma k16; x parts of 8"):
        assert reference_of(PROBLEM, order, GPU) is None


def test_a_space_keeps_the_order_that_is_asked() -> None:
    """All of its configs of it, also where rules would leave another family; the others are counted."""
    small = Space("x", ("sm_90",), ("a16w16",), (family(),), ("dot_for_one_row",))
    problem = GemmProblem(1, 4096, 4096)
    space = Orders({problem: WHOLE}).space_of(problem, small)
    pruned = prune(space, problem, GPU)
    assert {sums_of(problem, config, "sm_90") for config in pruned.kept} == {WHOLE}
    assert sum(pruned.illegal.values()) + sum(pruned.dropped.values()) + len(pruned.kept) == space.size
    assert f"sums other than {WHOLE}" in explain(pruned)
    # As it is read, one row has other families.
    assert not prune(small, problem, GPU).kept
    assert ANY_ORDER.space_of(problem, small) is small
    assert not prune(Orders({problem: WHOLE}, frozenset({problem})).space_of(problem, small), problem, GPU).kept


def family() -> FamilySpace:
    space = load_space(None, "sm_90", "a16w16")
    whole = next(each for each in space.families if each.family == "tiled")
    ranges = dict(whole.ranges)
    ranges |= {"BLOCK_SIZE_M": (16, 64), "BLOCK_SIZE_N": (64,), "BLOCK_SIZE_K": (64,), "num_stages": (3,)}
    ranges |= {"num_warps": (4,), "SPLIT_K": (1, 2), "GROUP_SIZE_M": (1,)}
    return replace(whole, ranges=tuple(ranges.items()), rules=None)


def test_what_may_win() -> None:
    """A config of the order, and a library's algorithm that bits have shown to be of it; PyTorch's own call not."""
    orders = Orders({PROBLEM: WHOLE})
    assert orders.may_win(PROBLEM, PLAIN.name, "sm_90")
    assert not orders.may_win(PROBLEM, SPLIT.name, "sm_90")
    assert orders.may_win_call(PROBLEM, ALGORITHM, {ALGORITHM: WHOLE})
    assert not orders.may_win_call(PROBLEM, ALGORITHM, {ALGORITHM: PARTS})
    assert not orders.may_win_call(PROBLEM, ALGORITHM, {})
    assert not orders.may_win_call(PROBLEM, VENDOR, {VENDOR: WHOLE})
    assert ANY_ORDER.may_win(PROBLEM, SPLIT.name, "sm_90")
    assert ANY_ORDER.may_win_call(PROBLEM, VENDOR, {})
    assert orders.besides(PROBLEM, GPU) == [reference_of(PROBLEM, WHOLE, GPU)]
    assert ANY_ORDER.besides(PROBLEM, GPU) == []


def test_the_fastest_of_each_order() -> None:
    """Of those whose binaries are there; orders of one config's kernels are compared with no library."""
    ready = {config.name: Candidate(config, ()) for config in (PLAIN, SPLIT, FEW)}
    slower = PLAIN.having(GROUP_SIZE_M=8)
    times = [measured(SPLIT, 5), measured(slower, 9), measured(PLAIN, 7), measured(FEW, 1)]
    found = fastest_by_order(PROBLEM, times, ready, "sm_90")
    assert [(order, each.config) for order, each in found.items()] == [(PARTS, SPLIT), (WHOLE, PLAIN)]


def test_loss() -> None:
    """Against the fastest of those that were timed; of what is itself the fastest, nothing."""
    assert loss(measured(PLAIN, 11), [measured(SPLIT, 10), None, measured(FEW, 20)]) == pytest.approx(0.1)
    assert loss(measured(PLAIN, 9), [measured(SPLIT, 10)]) == 0.0
    assert loss(None, []) is None
