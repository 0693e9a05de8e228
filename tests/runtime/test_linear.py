"""Tests of genkern.runtime.linear: models whose layers call winners, and get back what they had."""

from __future__ import annotations

import pytest
import torch
from recording_gpu import FakeGpu
from torch import nn

from genkern.runtime.bundle import Bundle
from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm
from genkern.runtime.linear import Patch, patch_model, report_model

LIBRARY = nn.functional.linear


class Model(nn.Module):
    """Two layers of which one is tuned, and a third weight that is multiplied by the functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.tuned = nn.Linear(512, 256, bias=False).bfloat16()
        self.other = nn.Linear(512, 111).bfloat16()
        self.head = nn.Linear(512, 320, bias=False).bfloat16()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.tuned(x), self.other(x), nn.functional.linear(x, self.head.weight)


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def context(bundle: Bundle, gpu: FakeGpu) -> Context:
    return Context(lambda op: [bundle], lambda index: gpu)


def patched(model: nn.Module, context: Context) -> Patch:
    return patch_model(model, Gemm("a16w16", context), context)


@torch.no_grad()
def test_tuned_layers_call_winners(context: Context, gpu: FakeGpu) -> None:
    """Layers and functional calls with their weights; what is not tuned stays the library's, to the bit."""
    model, x = Model(), torch.randn(100, 512).bfloat16()
    wanted = model(x)
    with patched(model, context) as patch:
        assert patch.layers == ("tuned", "head")
        out = model(x)
        assert len(gpu.driver.launched) == 3
        assert torch.equal(out[1], wanted[1])
        # Another model's weight is not ours.
        nn.functional.linear(x, torch.randn(256, 512).bfloat16())
        assert len(gpu.driver.launched) == 3
    gpu.driver.launched.clear()
    assert all(torch.equal(one, other) for one, other in zip(model(x), wanted, strict=True))
    assert not gpu.driver.launched
    assert nn.functional.linear is LIBRARY
    assert "forward" not in vars(model.tuned)


@torch.no_grad()
def test_patches_come_off_in_any_order(context: Context, gpu: FakeGpu) -> None:
    """Two models, and one of them twice; undoing twice does nothing."""
    one, other, x = Model(), Model(), torch.randn(100, 512).bfloat16()
    first, again, second = patched(one, context), patched(one, context), patched(other, context)
    assert again.layers == ()
    first.undo()
    first.undo()
    one(x)
    assert not gpu.driver.launched
    other(x)
    assert len(gpu.driver.launched) == 3
    second.undo()
    again.undo()
    other(x)
    assert len(gpu.driver.launched) == 3


def test_autocast_casts(context: Context, gpu: FakeGpu) -> None:
    """What autocast casts is the library's."""
    model = Model()
    with patched(model, context), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        out = model(torch.randn(100, 512))
    assert out[0].dtype == torch.bfloat16
    assert not gpu.driver.launched


def test_a_patched_model_is_trained(context: Context) -> None:
    """Gradients reach its parameters."""
    from genkern.runtime.torch_ops import define

    model = Model()
    gemm = Gemm("a16w16", Context(lambda op: [], lambda index: None))
    gemm.operator = define(gemm, "test_linear")
    with patch_model(model, gemm, context):
        sum(out.float().sum() for out in model(torch.randn(100, 512).bfloat16())).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_report(context: Context) -> None:
    """A line for each layer: its size, and who won for which M."""
    tuned, other, head = map(str, report_model(Model(), context))
    assert tuned.startswith("tuned [256, 512] bfloat16: M = 1: gemv_")
    assert tuned.endswith("M = 300: vendor")
    assert other == "other [111, 512] bfloat16 with bias: the library (not tuned)"
    assert head.startswith("head [320, 512] bfloat16: M = 100: tiled_")
