"""Tests of genkern.runtime.merged_layers.linears: the operator of layers that share x, in compiled programs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from layers_sharing_x import Attention, Bench, made, x_of

from genkern.runtime.linear import patch_model
from genkern.runtime.merged_layers.linears import define_linears
from genkern.runtime.process.torch_ops import define

_BENCH = Bench([(128, 64), (192, 64)])
_BENCH.gemm.operator = define(_BENCH.gemm, "test_linears_gemm")
_LINEARS = define_linears(_BENCH.gemm, "test_linears")


class Counting:
    """A backend that runs what it is given, and knows how often each operator is in it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.names += [str(node.target) for node in graph.graph.nodes]
        return graph.forward

    def count(self, name: str) -> int:
        return sum(name in each for each in self.names)


@torch.no_grad()
def test_weights_that_lie_together_are_one_product() -> None:
    """With biases too; others are multiplied each for itself, and torch.library's own checks pass."""
    x, whole, bias = x_of(1, 2), torch.randn(128, 64).bfloat16(), torch.randn(128).bfloat16()
    wanted = torch.nn.functional.linear(x, whole)
    parts = list(whole.split([64, 32, 32]))
    _BENCH.launches()
    assert _LINEARS(x, parts, []).allclose(wanted, rtol=1e-2, atol=1e-2)
    assert _BENCH.launches() == 1
    assert _LINEARS(x, [part.clone() for part in parts], []).allclose(wanted, rtol=1e-2, atol=1e-2)
    assert _BENCH.launches() == 0
    biases = list(bias.split([64, 32, 32]))
    for given in (biases, [each.clone() for each in biases]):
        assert _LINEARS(x, parts, given).allclose(torch.nn.functional.linear(x, whole, bias), rtol=1e-2, atol=1e-2)
    torch.library.opcheck(
        _LINEARS, (x, [part.clone() for part in parts], []), test_utils=("test_schema", "test_faketensor")
    )


@torch.no_grad()
@pytest.mark.parametrize("in_inference", [False, True])
def test_a_compiled_module_calls_it_once(in_inference: bool) -> None:
    """Whole, in one graph; when a weight is given other memory the same program goes on with that."""
    module, x = made(Attention()), x_of(1, 2)
    wanted = module(x)
    backend = Counting()
    torch.compiler.reset()
    mode = torch.inference_mode() if in_inference else contextlib.nullcontext()
    with patch_model(module, _BENCH.gemm, _BENCH.context, lambda: _LINEARS), mode:
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        _BENCH.launches()
        assert compiled(x).equal(wanted)
        assert _BENCH.launches() == 1
        assert backend.count("test_linears") == 1
        if not in_inference:
            module.k_proj.weight.data = module.k_proj.weight.data * 2
            found = compiled(x)
            assert found.equal(module(x))
            assert not found.equal(wanted)
            assert backend.count("test_linears") == 1
    assert compiled(x).equal(module(x))


@torch.no_grad()
def test_a_compiled_module_that_takes_two_tensors() -> None:
    """Each layer is given its own."""
    module, x, memory = made(Attention()), x_of(1, 2), x_of(1, 2, seed=1)
    wanted = module(x, memory)
    torch.compiler.reset()
    with patch_model(module, _BENCH.gemm, _BENCH.context, lambda: _LINEARS):
        compiled = torch.compile(module, fullgraph=True, backend=Counting())
        assert compiled(x, memory).allclose(wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("strict", [False, True])
@torch.no_grad()
def test_a_program_that_is_exported_has_the_librarys_layers(strict: bool) -> None:
    """Whoever loads it needs no merged weight."""
    module, x = made(Attention()), x_of(1, 2)
    with patch_model(module, _BENCH.gemm, _BENCH.context, lambda: _LINEARS):
        exported = torch.export.export(module, (x,), strict=strict)
    assert "test_linears" not in str(exported.graph)
    assert exported.module()(x).equal(module(x))


def test_a_compiled_module_is_trained() -> None:
    """With gradients for each layer."""
    module, x = made(Attention()).requires_grad_(True), x_of(1, 2)
    torch.compiler.reset()
    with patch_model(module, _BENCH.gemm, _BENCH.context, lambda: _LINEARS):
        torch.compile(module, fullgraph=True, backend="aot_eager")(x).float().sum().backward()
    assert all(layer.weight.grad is not None for layer in (module.q_proj, module.k_proj, module.v_proj))
