"""Calls of winners: they compute what the problem says, on a made-up GPU whose kernels are PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from computing_gpu import CONFIG, computing_gpu, planned, planned_row
from recording_gpu import FakeGpu

from genkern.api.pieces import Pieces
from genkern.api.result import TunedKernel
from genkern.errors import InputError, ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import TIE
from genkern.result.result import Result

PROBLEM = GemmProblem(64, 128, 256)


def tensors(problem: GemmProblem = PROBLEM) -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(1)
    x = torch.randn(problem.M, problem.K, generator=made).bfloat16()
    return x, torch.randn(problem.N, problem.K, generator=made).bfloat16()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[TunedKernel, FakeGpu]:
    """A winner of PROBLEM, and the GPU on which tensors are taken to lie."""
    row = planned_row(PROBLEM)
    bundle, kernels = planned([row])
    gpu = computing_gpu(kernels)
    monkeypatch.setattr("genkern.api.calls.gpu_of", lambda index: gpu)
    return TunedKernel(row, Pieces(".genkern", bundle=bundle)), gpu


def test_a_winner_is_a_function_of_tensors(kernel: tuple[TunedKernel, FakeGpu]) -> None:
    """Its kernel runs, once a call, and computes the product; arguments may be named."""
    call, gpu = kernel
    x, weight = tensors()
    y = call(x, weight)
    assert len(gpu.driver.launched) == 1
    assert CONFIG.family in gpu.driver.launched[0].symbol
    torch.testing.assert_close(y.float(), x.float() @ weight.float().T, rtol=2e-2, atol=2e-1)
    assert torch.equal(call(weight=weight, x=x), y)
    assert len(gpu.driver.launched) == 2


def test_other_tensors_are_refused(kernel: tuple[TunedKernel, FakeGpu]) -> None:
    """Nothing is launched for another size, type or epilogue, nor if a gradient is expected."""
    call, gpu = kernel
    x, weight = tensors()
    for given, named, says in (
        ((x[:8], weight), {}, "64x128x256"),
        ((x.half(), weight.half()), {}, "bf16"),
        ((x, weight, torch.ones(128).bfloat16()), {}, "bias"),
        ((x, weight), {"activation": "relu"}, "relu"),
        ((x,), {}, "weight"),
        ((x, weight, [1]), {}, "list"),
        ((), {}, "tensors"),
        ((x, weight.clone().requires_grad_()), {}, "gradients"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            call(*given, **named)
        assert "\n" not in str(caught.value)
    with torch.no_grad():
        call(x, weight.clone().requires_grad_())
    assert len(gpu.driver.launched) == 1


def test_the_library_serves_what_it_won(monkeypatch: pytest.MonkeyPatch) -> None:
    row = planned_row(PROBLEM, choice=TIE, vendor="torch")
    bundle, kernels = planned([row])
    gpu = computing_gpu(kernels)
    monkeypatch.setattr("genkern.api.calls.gpu_of", lambda index: gpu)
    x, weight = tensors()
    y = TunedKernel(row, Pieces(".genkern", bundle=bundle))(x, weight)
    assert torch.equal(y, torch.nn.functional.linear(x, weight))
    assert gpu.driver.launched == []


def test_a_machine_that_cannot_call_it_says_why(
    kernel: tuple[TunedKernel, FakeGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors on the CPU, another GPU, and a bundle without the kernel."""
    call, gpu = kernel
    x, weight = tensors()
    other: Result = planned_row(PROBLEM)
    object.__setattr__(other, "device", "NVIDIA H100 80GB HBM3")
    bundle, _ = planned([planned_row(GemmProblem(64, 128, 512))])
    for row, pieces, error, says in (
        (other, call._pieces, InputError, "H100"),
        (call.record, Pieces(".genkern", bundle=bundle), ResultsError, "not tuned"),
    ):
        with pytest.raises(error, match=says):
            TunedKernel(row, pieces)(x, weight)
    monkeypatch.undo()
    with pytest.raises(InputError, match="CPU"):
        call(x, weight)
    assert gpu.driver.launched == []
