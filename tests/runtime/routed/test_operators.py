"""Tests of genkern.runtime.routed.operators: torch.compile, export and gradients of groups and mixtures of experts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from recording_gpu import FakeGpu
from test_experts import layer

from genkern.runtime.calls.context import Context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped
from genkern.runtime.routed.operators import define

_numbers = itertools.count()
ENDS = torch.tensor([10, 10, 40, 64], dtype=torch.int32)


def made(kind: type[Experts] | type[Grouped], context: Context) -> Any:
    """The function, with an operator of its own name."""
    calls = kind("fused_moe" if kind is Experts else "grouped_gemm", context)
    calls.operator = define(calls, f"test_routed_{next(_numbers)}")
    return calls


def clones(given: tuple[torch.Tensor, ...], wanted: int) -> list[torch.Tensor]:
    """Leaves, the first so many of which want gradients."""
    return [each.detach().clone().requires_grad_(place < wanted) for place, each in enumerate(given)]


def test_one_graph_for_any_number_of_tokens(untuned: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """fullgraph with dynamic tokens compiles once, and gives what eager calls give."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    moe, graphs = made(Experts, untuned), []
    _, gate_up, down, *_ = layer(1)

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    def model(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = moe(x, gate_up, down, weights, ids) + 1
        return out

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    with torch.no_grad():
        for tokens in (3, 5, 17):
            x, _, _, weights, ids = layer(tokens)
            assert torch.equal(compiled(x, weights, ids), moe(x, gate_up, down, weights, ids) + 1)
    assert len(graphs) == 1
    assert [str(node.target) for node in graphs[0].graph.nodes if "genkern" in str(node.target)]


def test_export(untuned: Context) -> None:
    """Of both, with the operators in the program, for any number of tokens."""
    moe, grouped = made(Experts, untuned), made(Grouped, untuned)
    x, gate_up, down, weights, ids = layer(5)

    class Model(torch.nn.Module):
        def forward(self, x: Any, weights: Any, ids: Any, ends: Any) -> Any:
            return moe(x, gate_up, down, weights, ids), grouped(x, gate_up, ends)

    ends = torch.full((8,), 5, dtype=torch.int32)
    tokens = torch.export.Dim("tokens", min=2, max=64)
    shapes = {0: tokens}, {0: tokens}, {0: tokens}, {}
    program = torch.export.export(Model(), (x, weights, ids, ends), dynamic_shapes=shapes)
    assert sum("genkern" in str(node.target) for node in program.graph.nodes) == 2
    x, _, _, weights, ids = layer(7)
    found = program.module()(x, weights, ids, ends)
    assert torch.equal(found[0], moe(x, gate_up, down, weights, ids))
    assert found[1].shape == (7, 256)


def test_gradients_of_a_layer(routed_context: Context, untuned: Context, routed_gpu: FakeGpu) -> None:
    """Those of the library, whoever computes the layer, of all that have one."""
    given = layer(16)
    wanted = clones(given, 4)
    Experts("fused_moe", untuned)(*wanted).sum().backward()
    for context, wants in ((routed_context, 4), (routed_context, 1), (untuned, 4)):
        leaves, moe = clones(given, wants), made(Experts, context)
        moe(*leaves).sum().backward()
        for one, other in zip(leaves[:wants], wanted, strict=False):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=2e-2)
        assert [each.grad is None for each in leaves[wants:]] == [True] * (5 - wants)
    assert routed_gpu.driver.launched
    leaves = clones(given, 2)
    with pytest.raises(NotImplementedError, match="first derivatives"):
        torch.autograd.grad(made(Experts, routed_context)(*leaves).sum(), leaves[:1], create_graph=True)


def test_gradients_of_groups(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """In what torch.compile makes of forward and backward pass too."""
    given = torch.randn(64, 256).bfloat16(), torch.randn(4, 128, 256).bfloat16()
    starts = [0, *ENDS.tolist()]
    x, weight = clones(given, 2)
    rows = [x[start:end] @ weight[g].T for g, (start, end) in enumerate(itertools.pairwise(starts))]
    torch.cat(rows).relu().sum().backward()
    for compiled in (False, True):
        grouped = made(Grouped, routed_context)
        leaves = clones(given, 2)

        def model(x: Any, weight: Any, grouped: Any = grouped) -> Any:
            return grouped(x, weight, ENDS, activation="relu")

        call = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
        call(*leaves).sum().backward()
        for one, other in zip(leaves, (x, weight), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=2e-2)


def test_scales_have_no_gradient(untuned: Context) -> None:
    """And say so in one line when one is asked for."""
    x, weight = torch.randn(64, 256).to(torch.float8_e4m3fn), torch.randn(4, 128, 256).to(torch.float8_e4m3fn)
    scale = torch.ones(1, requires_grad=True)
    out = made(Grouped, untuned)(x, weight, ENDS, scale, torch.ones(4, 1, 1))
    with pytest.raises(NotImplementedError, match=r"torch\.no_grad"):
        out.sum().backward()


def test_traced_shapes_and_types(untuned: Context) -> None:
    """What is traced has the shape and type of what is computed, scales told by tensors too."""
    grouped, moe = made(Grouped, untuned), made(Experts, untuned)
    f8 = torch.float8_e4m3fn
    x, gate_up, down, weights, ids = layer(3)
    calls = (
        lambda: grouped(x.to(f8), gate_up.to(f8), torch.full((8,), 3).int(), torch.ones(3, 1), torch.ones(8, 1, 256)),
        lambda: moe(x.to(f8), gate_up.to(f8), down.to(f8), weights, ids, torch.ones(8, 1, 256), torch.ones(8, 1, 256),
                    x_scale=torch.ones(3, 1), out_dtype=torch.float16),
    )  # fmt: skip
    for call in calls:
        found = call()
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            traced = call()
        assert (traced.shape, traced.dtype) == (found.shape, found.dtype)
