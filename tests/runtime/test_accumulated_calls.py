"""Calls of fp8 are computed as PyTorch's own call would: in full sums, unless they say that fast ones will do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from computing_gpu import computing_gpu, planned, planned_row

from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_fast, as_full, is_full
from genkern.ops.op import get_op
from genkern.runtime.calls.call_arguments import CallArguments
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.routed.functions import routed_of

F8 = torch.float8_e4m3fn
FAST = GemmProblem(96, 128, 256, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16")
FULL = as_full(FAST)


def operands(dtype: torch.dtype = F8) -> tuple[Any, ...]:
    """x, weight, bias, out_dtype, scale_a and scale_b."""
    x, weight = (torch.randint(-3, 4, shape).to(dtype) for shape in ((FAST.M, FAST.K), (FAST.N, FAST.K)))
    return x, weight, None, None, torch.ones(1), torch.ones(1)


class Calls:
    """Calls of a8w8 where these problems have rows, with these times."""

    def __init__(self, times_us: dict[GemmProblem, float]) -> None:
        rows = [planned_row(problem, duration_us=us, vendor_us=2 * us) for problem, us in times_us.items()]
        bundle, kernels = planned(rows)
        self.gpu = computing_gpu(kernels)
        self.seen: list[GemmProblem] = []
        watch = lambda gpu, problem, choice: self.seen.append(problem)  # noqa: E731
        self.context = Context(lambda op: [bundle], lambda index: self.gpu, watches=[watch])
        self.gemm = Gemm("a8w8", self.context)

    def server(self, **own: str) -> GemmProblem | None:
        """The problem whose winner serves a call, None where the library does; what the call is must be right."""
        given = operands()
        out = self.gemm(*given, **own)
        assert torch.equal(out, (given[0].double() @ given[1].double().mT).to(out.dtype))
        choice = self.context.find(self.gpu, self.seen[-1])  # type: ignore[arg-type]
        assert len(self.gpu.driver.launched) == (choice.winner is not None)
        return choice.winner and choice.winner.problem


@pytest.mark.parametrize(
    ("fast_us", "full_us", "plain", "fast"),
    [(8.0, 10.0, FULL, FAST), (10.0, 8.0, FULL, FULL), (8.0, 0.0, None, FAST), (0.0, 10.0, FULL, FULL)],
)
def test_full_sums_serve_all_calls_and_fast_ones_those_that_say_so(
    fast_us: float, full_us: float, plain: GemmProblem | None, fast: GemmProblem
) -> None:
    """Whoever takes either has the faster one."""
    times = {problem: us for problem, us in ((FAST, fast_us), (FULL, full_us)) if us}
    assert Calls(times).server() == plain
    assert Calls(times).server(accumulate="full") == plain
    assert Calls(times).server(accumulate="fast") == fast


def test_another_m_is_served_in_the_same_way() -> None:
    calls = Calls({FULL: 10.0})
    for problem in (FULL, FAST):
        other = GemmProblem(95, *(getattr(problem, name) for name in ("N", "K", "op", "dtype_a", "dtype_b", "dtype_c")))
        other = as_full(other) if is_full(problem) else other
        choice = calls.context.find(calls.gpu, other)  # type: ignore[arg-type]
        assert choice.winner is not None
        assert not choice.exact
    fast_alone = Calls({FAST: 10.0})
    assert fast_alone.context.find(fast_alone.gpu, FULL).why.startswith("tuned for fast sums only")  # type: ignore[arg-type]


def test_where_nothing_else_is_computed_calls_do_not_say_it() -> None:
    """int8, and GPUs that add up in float32, whose rows and recorded sizes have no such field."""
    op = get_op("a8w8")
    arguments = CallArguments.of(op, *operands(), None, {})
    assert arguments.problem == FULL
    assert CallArguments.of(op, *operands(torch.int8), None, {}).problem is not None
    assert not is_full(CallArguments.of(op, *operands(torch.int8), None, {}).problem)  # type: ignore[arg-type]
    assert CallArguments.of(op, *operands(), None, {"accumulate": "fast"}).problem == FAST
    calls = Calls({FAST: 10.0})
    calls.gpu.identity = type(calls.gpu.identity)("sm_100", "NVIDIA B200", 148)
    calls.gemm(*operands())
    assert calls.seen == [FAST]


def test_routed_calls_ask_for_full_sums_too() -> None:
    grouped = routed_of("grouped_gemm")
    x, weight = torch.ones(64, 256).to(F8), torch.ones(4, 128, 256).to(F8)
    rows = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
    scales = torch.ones(1), torch.ones(4, 1, 1)
    problem = grouped._problem(x, weight, rows, *scales, None, None, None, {})  # type: ignore[union-attr]
    assert is_full(problem)
    fast = grouped._problem(x, weight, rows, *scales, None, None, None, {"accumulate": "fast"})  # type: ignore[union-attr]
    assert fast == as_fast(problem)
    blocks = torch.ones(64, 2), torch.ones(4, 1, 2)
    assert not is_full(grouped._problem(x, weight, rows, *blocks, None, None, None, {}))  # type: ignore[union-attr]
    wide = grouped._problem(x.bfloat16(), weight.bfloat16(), rows, None, None, None, None, None, {})  # type: ignore[union-attr]
    assert not is_full(wide)


def test_the_library_is_asked_for_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch._scaled_mm's use_fast_accum, on a device that has it."""
    from genkern.ops.a8w8.library import library

    said = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda *tensors, **more: said.append(more["use_fast_accum"]))

    class OnGpu(torch.Tensor):
        is_cuda = True

    x, weight, *_, scale_a, scale_b = operands()
    for problem in (FAST, FULL):
        library(problem, {"a": x.as_subclass(OnGpu), "b": weight.mT, "scale_a": scale_a, "scale_b": scale_b})
    assert said == [True, False]
