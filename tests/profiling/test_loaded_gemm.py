"""Tests of profiling/loaded_gemm.py that need no GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_gemms import taking

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import Copied, passed
from genkern.kernels.families.product import product_of
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op
from genkern.profiling.loaded_gemm import SharedWorkspace, arguments_of, rotating_copies


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


def plan_of(problem: GemmProblem, config: Config) -> LaunchPlan:
    return launch_plan(product_of(problem, get_op(problem.op), "sm_90"), config, gpu_for_arch("sm_90"))


def test_configs_share_a_workspace_that_is_large_enough() -> None:
    """Whatever was bound before, a config finds what it needs, and counters that were never anything but zero."""
    pytest.importorskip("torch")
    problem = GemmProblem(48, 96, 512)
    workspace = SharedWorkspace("cpu")
    for config in [*taking(problem), *reversed(taking(problem))]:
        plan = plan_of(problem, config)
        tensors = workspace.for_plan(plan, {"units": 5})
        elements, counters = plan.workspace_elements({"units": 5})
        assert tensors["workspace"].numel() >= elements
        assert tensors["counters"].numel() >= counters
        assert not tensors["counters"].any()


@pytest.mark.parametrize(
    ("m", "n", "k", "row_major_b"), [(1, 536, 174, True), (536, 1, 174, False), (48, 96, 174, False)]
)
def test_a_copy_of_one_row_keeps_its_pitch(m: int, n: int, k: int, row_major_b: bool) -> None:
    """Descriptors of operands that are copied first have the pitch of the copies, whole cache lines: one row too."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.tools.tensor_descriptor")
    problem = GemmProblem(m, n, k, row_major_b=row_major_b)
    plan = plan_of(problem, Config("tiled_tma", 64, 64, 64, 1, 1, 4, 3, realigned=1))
    b = torch.zeros(k, n) if row_major_b else torch.zeros(n, k).T
    tensors = {"a": torch.zeros(m, k), "b": b, "c": torch.zeros(m, n)}
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    tensors |= SharedWorkspace("cpu").for_plan(plan, {"units": 5})
    given = arguments_of(plan.launches[-1], tensors, {"units": 5})
    copied = [
        descriptor
        for argument, descriptor in zip(passed(plan.launches[-1].arguments), given, strict=True)
        if isinstance(argument, Copied)
    ]
    assert copied
    assert all(list(descriptor.strides) == [192, 1] for descriptor in copied)
