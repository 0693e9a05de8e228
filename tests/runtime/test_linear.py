"""Tests of genkern.runtime.linear: models whose layers call winners, and get back what they had."""

from __future__ import annotations

import copy
import itertools
import logging
import pickle

import pytest
import torch
from recording_gpu import FakeGpu
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from genkern.errors import InvarianceError
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.configuration import OFF, STRICT, WARN
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.linear import Patch, patch_model, report_model
from genkern.runtime.process.torch_ops import define

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


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@torch.no_grad()
def test_nothing_is_left_of_patches(context: Context, order: tuple[int, ...]) -> None:
    """Undone in the order in which they were made, or in any other, also with somebody else's function around them."""
    for others in (None, lambda linear: lambda *given: linear(*given)):
        patches = [patched(Model(), context) for _ in order]
        if others is not None:
            nn.functional.linear = others(nn.functional.linear)  # type: ignore[assignment]
        try:
            for number in order:
                patches[number].undo()
            assert others is not None or nn.functional.linear is LIBRARY
            x = torch.randn(3, 512).bfloat16()
            assert nn.functional.linear(x, x).equal(LIBRARY(x, x))
        finally:
            nn.functional.linear = LIBRARY


def test_autocast_casts(context: Context, gpu: FakeGpu) -> None:
    """What autocast casts is the library's."""
    model = Model()
    with patched(model, context), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        out = model(torch.randn(100, 512))
    assert out[0].dtype == torch.bfloat16
    assert not gpu.driver.launched


def test_a_patched_model_is_trained(context: Context) -> None:
    """Gradients reach its parameters."""
    from genkern.runtime.process.torch_ops import define

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


@torch.no_grad()
def test_copies_have_their_own_weights() -> None:
    """A patched model that is copied, or pickled, multiplies by the copy's weights; what is loaded can be patched."""
    model, x = Model(), torch.randn(3, 512).bfloat16()
    # Without a GPU, so that there are values; who watches has all layers patched.
    context = Context(lambda op: [], lambda index: None, watches=[lambda *seen: None])
    with patched(model, context):
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            copied.tuned.weight.zero_()
            copied.head.weight.zero_()
            assert not any(copied(x)[place].any() for place in (0, 2))
    assert all(model(x)[place].any() for place in (0, 2))
    with patched(copied, context) as patch:
        assert patch.layers == ("tuned", "other", "head")


@torch.no_grad()
def test_a_forward_that_came_later_stays(context: Context) -> None:
    """Hooks of other libraries put theirs around ours, and take it back whenever they like."""
    model = Model()
    patch = patched(model, context)
    model.tuned.forward, of_head = lambda x: x, model.head.forward
    del model.head.forward
    patch.undo()
    assert model.tuned(torch.ones(1)).equal(torch.ones(1))
    assert of_head(torch.ones(1, 512).bfloat16()).shape == (1, 320)


@torch.no_grad()
def test_weights_that_are_subclasses_are_the_librarys(context: Context, gpu: FakeGpu) -> None:
    """Quantized and sharded weights say by themselves how they are multiplied, and know no operator of ours."""
    model, x = Model(), torch.randn(100, 512).bfloat16()
    wanted = model(x)[0]
    gemm = Gemm("a16w16", context)
    gemm.operator = lambda *given: pytest.fail("the operator")
    with patch_model(model, gemm, context):
        model.tuned.weight = nn.Parameter(TwoTensor(model.tuned.weight.data, model.tuned.weight.data))
        assert model.tuned(x).a.equal(wanted)
    assert not gpu.driver.launched
    with patch_model(model, gemm, context) as patch:
        assert patch.layers == ("head",)
        assert str(report_model(model, context)[0]).endswith("the library (not tuned)")


@torch.no_grad()
def test_a_weight_that_was_replaced_is_not_ours(context: Context, gpu: FakeGpu) -> None:
    """Its number may be another tensor's by now."""
    model = Model()
    with patched(model, context):
        old = model.head.weight
        model.head.weight = nn.Parameter(torch.zeros(320, 512).bfloat16())
        nn.functional.linear(torch.randn(100, 512).bfloat16(), old)
        assert not gpu.driver.launched


@torch.no_grad()
def test_a_patched_model_is_compiled_whole(context: Context, gpu: FakeGpu) -> None:
    """Layers are the operator, the functional form is the library's, in one graph."""
    model, x = Model(), torch.randn(3, 512).bfloat16()
    wanted = model(x)
    gemm = Gemm("a16w16", Context(lambda op: [], lambda index: None))
    gemm.operator = define(gemm, "test_linear_compiled")
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    with patch_model(model, gemm, context):
        out = torch.compile(model, fullgraph=True, backend=backend)(x)
    assert all(torch.equal(one, other) for one, other in zip(out, wanted, strict=True))
    assert [sum("test_linear_compiled" in name for name in names) for names in graphs] == [1]


@pytest.mark.parametrize("mode", [OFF, WARN, STRICT])
@torch.no_grad()
def test_no_product_of_a_compiled_model_is_the_librarys_unsaid(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where calls must be batch invariant and no kernel is: neither a layer's nor one by the functional form."""
    model = nn.ModuleDict({"router": Router()})
    own = Context(lambda op: [], lambda index: None, batch_invariant=mode)
    gemm = Gemm("a16w16", own)
    gemm.operator = define(gemm, f"test_linear_unsaid_{mode}")
    x = torch.randn(3, 512).bfloat16()
    wanted = model["router"](x)
    torch.compiler.reset()
    with patch_model(model, gemm, own), caplog.at_level(logging.WARNING, logger="genkern"):
        call = torch.compile(model["router"], backend="eager", fullgraph=True)
        if mode == STRICT:
            with pytest.raises(InvarianceError, match="no GPU"):
                call(x)
        else:
            assert call(x).equal(wanted)
    assert ("not batch invariant" in caplog.text) == (mode == WARN)


@torch.no_grad()
def test_replicas_call_winners(context: Context, gpu: FakeGpu) -> None:
    """Layers of nn.DataParallel's, with weights of their own; nothing of them stays."""
    model, x = Model(), torch.randn(100, 512).bfloat16()
    weight = torch.randn(256, 512).bfloat16()
    with patched(model, context):
        replica = model.tuned._replicate_for_data_parallel()
        replica.weight, replica.bias = weight, None
        replica(x)
        (launched,) = gpu.driver.launched
        assert weight.data_ptr().to_bytes(8, "little") in launched.parameters
    assert model.tuned._replicate_for_data_parallel().forward.__func__ is nn.Linear.forward


@pytest.mark.parametrize("mode", [OFF, WARN, STRICT])
def test_replicas_of_routers_are_refused(
    bundle: Bundle, gpu: FakeGpu, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where calls must be batch invariant: nobody knows the weights that they multiply."""
    model = nn.ModuleDict({"router": Router()})
    own = Context(lambda op: [bundle], lambda index: gpu, batch_invariant=mode)
    with patched(model, own), caplog.at_level(logging.WARNING, logger="genkern"):
        if mode == STRICT:
            with pytest.raises(InvarianceError, match=r"router: .*nn.DataParallel"):
                model["router"]._replicate_for_data_parallel()
        else:
            model["router"]._replicate_for_data_parallel()
    assert ("nn.DataParallel" in caplog.text) == (mode == WARN)
    model["router"]._replicate_for_data_parallel()


class Router(nn.Module):
    """As transformers has routers: no nn.Linear, and multiplied by the functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 512).bfloat16())
        self.embedding = nn.Embedding(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


@torch.no_grad()
def test_modules_that_multiply_their_weight_are_served(context: Context, gpu: FakeGpu) -> None:
    """By what they call, whatever they are called; embeddings are none of them."""
    model = nn.ModuleDict({"router": Router()})
    with patched(model, context) as patch:
        assert patch.layers == ("router",)
        model["router"](torch.randn(100, 512).bfloat16())
        assert len(gpu.driver.launched) == 1
        assert [layer.name for layer in report_model(model, context)] == ["router"]
