"""Tests of genkern/space/rules/sum_order.py: what is left of a space whose configs must add up K in one order."""

from __future__ import annotations

from dataclasses import replace

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.space.prune import explain, prune
from genkern.space.space import FamilySpace, Space, load_space
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint

GPU = gpu_for_arch("sm_90")
WHOLE = "wgmma k16"


def test_a_space_keeps_the_order_that_is_asked() -> None:
    """All of its configs of it, also where rules would leave another family; the others are counted."""
    small = Space("x", ("sm_90",), ("a16w16",), (family(),), ("dot_for_one_row",))
    problem = GemmProblem(1, 4096, 4096)
    space = SumOrderConstraint({problem: WHOLE}).space_of(problem, small)
    pruned = prune(space, problem, GPU)
    assert {sums_of(problem, config, "sm_90") for config in pruned.kept} == {WHOLE}
    assert sum(pruned.illegal.values()) + sum(pruned.dropped.values()) + len(pruned.kept) == space.size
    assert f"sums other than {WHOLE}" in explain(pruned)
    # As it is read, one row has other families.
    assert not prune(small, problem, GPU).kept
    assert ANY_ORDER.space_of(problem, small) is small
    assert not prune(
        SumOrderConstraint({problem: WHOLE}, frozenset({problem})).space_of(problem, small), problem, GPU
    ).kept


def family() -> FamilySpace:
    space = load_space(None, "sm_90", "a16w16")
    whole = next(each for each in space.families if each.family == "tiled")
    ranges = dict(whole.ranges)
    ranges |= {"BLOCK_SIZE_M": (16, 64), "BLOCK_SIZE_N": (64,), "BLOCK_SIZE_K": (64,), "num_stages": (3,)}
    ranges |= {"num_warps": (4,), "SPLIT_K": (1, 2), "GROUP_SIZE_M": (1,)}
    return replace(whole, ranges=tuple(ranges.items()), rules=None)
