"""Tests of genkern.runtime.merged_layers.invariant_mode: a row of layers that share an input has the same bits for
every M.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from computing_gpu import CONFIG, computing_gpu, planned, planned_row
from layers_sharing_x import SideBySide, made
from long_tests import drawn
from torch import nn

from genkern.errors import InvarianceError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.result.result import Result
from genkern.runtime.calls.configuration import OFF, STRICT, WARN
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.linear import Patch, patch_model, report_model
from genkern.runtime.merged_layers.invariant_mode import LayerMode, layer_mode_of
from genkern.runtime.merged_layers.linears import define_linears
from genkern.runtime.process.torch_ops import define

K, Q, KV = 256, 256, 128
WHOLE = Q + 2 * KV
# The last is more than products are shared for where nobody asks for one order.
SIZES = 1, 2, 16, 17, 1024, 1025
OTHER = replace(CONFIG, BLOCK_SIZE_M=16)
POOL = torch.randn(max(SIZES), K, generator=torch.Generator().manual_seed(0)).bfloat16()


def ordered(n: int, config: Config = CONFIG, *, of_rows: bool = True) -> list[Result]:
    """Winners of one order of sums for every M."""
    problems = [GemmProblem(m, n, K, row_major_a=of_rows) for m in (2, 16)]
    return [planned_row(each, config, sums=sums_of(each, config, "sm_90"), batch_invariant=True) for each in problems]


def usual(n: int) -> list[Result]:
    """Winners that are faster, and of nobody's order, for every other M of SIZES."""
    return [planned_row(GemmProblem(m, n, K), OTHER, duration_us=1.0) for m in SIZES[::2]]


# What is in a bundle, how layers are called then, and by how many launches for few rows and for many.
CASES: dict[str, tuple[list[Result], LayerMode, tuple[int, int]]] = {
    "the product alone": (ordered(WHOLE), LayerMode.TOGETHER, (1, 1)),
    "a layer has another order": (ordered(WHOLE) + ordered(Q, OTHER) + usual(WHOLE), LayerMode.TOGETHER, (1, 1)),
    "all have one order": (ordered(WHOLE) + ordered(Q) + ordered(KV), LayerMode.EITHER, (1, 3)),
    "all have another order": (ordered(WHOLE, OTHER) + ordered(Q) + ordered(KV), LayerMode.APART, (3, 3)),
    "columns have another order": (
        ordered(WHOLE) + ordered(Q) + ordered(KV) + ordered(KV, OTHER, of_rows=False),
        LayerMode.APART,
        (3, 3),
    ),
    "the product has none": (usual(WHOLE) + ordered(Q) + ordered(KV), LayerMode.APART, (3, 3)),
}


_patches: list[Patch] = []


class Served:
    """A patched module, with winners whose results say of which order they are: a factor each."""

    def __init__(self, rows: list[Result], mode: str = STRICT, operators: str = "") -> None:
        bundle, kernels = planned(rows)
        calls = {call.binaries[0]: call.sums for winner in bundle.winners for call in winner.calls}
        orders = sorted(set(calls.values()))
        self.gpu = computing_gpu(
            {sha256: replace(each, scale=2 + orders.index(calls[sha256])) for sha256, each in kernels.items()}
        )
        self.context = Context(lambda op: [bundle], lambda index: self.gpu, batch_invariant=mode)
        gemm, self.module = Gemm("a16w16", self.context), made(SideBySide(K, Q, KV, KV))
        linears = None
        if operators:
            gemm.operator = define(gemm, f"test_{operators}")
            operator = define_linears(gemm, f"test_{operators}_linears")
            linears = lambda: operator  # noqa: E731
        self.patch = patch_model(self.module, gemm, self.context, linears)
        _patches.append(self.patch)

    def launches(self) -> int:
        count = len(self.gpu.driver.launched)
        self.gpu.driver.launched.clear()
        return count

    @property
    def way(self) -> LayerMode:
        weights = [layer.weight for layer in (self.module.q, self.module.k, self.module.v)]
        return layer_mode_of(weights, False, self.context)


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    """Without gradients, and with patches that end with the test."""
    with torch.no_grad():
        yield
    while _patches:
        _patches.pop().undo()


@pytest.mark.parametrize("name", CASES)
def test_a_row_has_the_same_bits_for_every_m(name: str) -> None:
    """Called together or one by one, as the bundle says, for all M alike."""
    rows, way, (few, many) = CASES[name]
    implementation = Served(rows)
    assert implementation.patch.merged == ("q + k + v",)
    assert implementation.way is way
    (alone,) = implementation.module(POOL[:1])
    for m in SIZES:
        implementation.launches()
        out = implementation.module(POOL[:m])
        assert out[0].equal(alone), m
        assert implementation.launches() == (many if m > 1024 else few), m
        columns = POOL[:m].t().contiguous().t()
        # Columns of layers that are called alone are another problem, with or without a patch.
        assert way is LayerMode.APART or implementation.module(columns)[0].equal(alone), m


def test_layers_without_an_order_are_refused() -> None:
    """Whether their product is tuned or not, for each M, and served by it again afterwards."""
    implementation = Served(usual(WHOLE))
    assert implementation.way is LayerMode.APART
    for m in SIZES:
        with pytest.raises(InvarianceError, match=f"{m}x{Q}x{K}"):
            implementation.module(POOL[:m])
    implementation.context.switch(OFF)
    implementation.module(POOL[:1])
    assert implementation.launches() == 1


def test_a_switch_changes_the_way() -> None:
    """At once, back and forth, and between two layers' calls; weights stay where they lie."""
    implementation = Served(ordered(WHOLE, OTHER) + ordered(Q) + ordered(KV), OFF)
    places = [each.data_ptr() for each in implementation.module.parameters()]
    x = POOL[:4]
    found = {}
    for mode in (OFF, STRICT, OFF, STRICT):
        implementation.context.switch(mode)
        out = implementation.module(x)
        assert implementation.launches() == (3 if mode == STRICT else 1)
        assert found.setdefault(mode, out).equal(out)
    assert not found[OFF].equal(found[STRICT])
    implementation.context.switch(OFF)
    implementation.module.mixes = lambda x: implementation.context.switch(STRICT)
    out = implementation.module(x)
    assert out[:, Q:].equal(found[STRICT][:, Q:])
    implementation.patch.undo()
    assert [each.data_ptr() for each in implementation.module.parameters()] == places
    assert not any("forward" in vars(each) for each in implementation.module.modules())


def test_what_is_called_together_alone_is_so_always() -> None:
    """A layer by itself, layers that are given several tensors, hooks in inference mode: each gets its part."""
    implementation = Served(CASES["a layer has another order"][0])
    module, x, memory = implementation.module, POOL[:3], POOL[3:6]
    wanted, of_memory = module(x), module(memory)
    assert module.q(x).equal(wanted[:, :Q])
    for _ in range(2):
        assert module(x, memory).equal(torch.cat((wanted[:, :Q], of_memory[:, Q:]), -1))
    assert module(x).equal(wanted)
    # Rounding commutes with powers of two.
    module.k.register_forward_pre_hook(lambda layer, given: (given[0].mul_(2), None)[1])
    with torch.inference_mode():
        out = module(x.clone())
    assert out.equal(torch.cat((wanted[:, :Q], 2 * wanted[:, Q:]), -1))


def test_what_is_called_together_alone_is_refused_otherwise() -> None:
    """Copies, gradients, transforms, casts, and weights that were given other memory; never another order instead."""
    implementation = Served(CASES["a layer has another order"][0])
    module, x = implementation.module, POOL[:3]
    with pytest.raises(InvarianceError, match="only their common product"):
        copy.deepcopy(module)(x)
    with torch.enable_grad(), pytest.raises(InvarianceError, match="gradients"):
        module(x)
    with pytest.raises(InvarianceError, match="transforms"):
        torch.func.vmap(module)(x[None])
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InvarianceError):
        module(x)
    module(x)
    module.v.weight.data = module.v.weight.data.clone()
    with pytest.raises(InvarianceError, match="weights that were moved"):
        module(x)
    implementation.context.switch(OFF)
    module(x)


def test_what_has_its_own_order_is_never_refused() -> None:
    """Gradients, copies, transforms: the same bits, since the product's order is the layers'."""
    implementation = Served(CASES["all have one order"][0])
    module, x = implementation.module, POOL[:3]
    wanted = module(x)
    assert copy.deepcopy(module)(x).equal(wanted)
    with torch.enable_grad():
        assert module(x).equal(wanted)
    module.v.weight.data = module.v.weight.data.clone()
    assert module(x).equal(wanted)
    assert implementation.launches() == 1 + 3 + 3 + 3


def test_a_warning_is_enough_by_choice(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be called together is called as without the mode, and it is said."""
    implementation = Served(ordered(WHOLE), WARN)
    with torch.enable_grad():
        out = implementation.module(POOL[:3])
    weights = [layer.weight for layer in (implementation.module.q, implementation.module.k, implementation.module.v)]
    assert out.equal(torch.cat([nn.functional.linear(POOL[:3], weight) for weight in weights], -1))
    assert "only their common product" in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("name", drawn([*CASES], 3))
def test_compiled_programs_go_the_same_way(name: str) -> None:
    """For every M, in the mode in which they run, and where weights were given other memory since."""
    rows, _, (few, _) = CASES[name]
    implementation = Served(rows, OFF, f"ways_{list(CASES).index(name)}")
    torch.compiler.reset()
    module: Any = torch.compile(implementation.module, dynamic=True, fullgraph=True, backend="eager")
    module(POOL[:5])
    implementation.context.switch(STRICT)
    (alone,) = implementation.module(POOL[:1])
    for m in (2, 17, 1025):
        implementation.launches()
        assert module(POOL[:m])[0].equal(alone)
        assert implementation.launches() == few
    implementation.module.v.weight.data = implementation.module.v.weight.data.clone()
    assert module(POOL[:2])[0].equal(alone)


def test_programs_that_are_read_in_pieces_go_the_same_way() -> None:
    """Where a layer is compiled without the module that shares its input; gradients are refused as ever."""
    implementation = Served(CASES["a layer has another order"][0], STRICT, "ways_in_pieces")
    wanted = implementation.module(POOL[:7])
    implementation.module.mixes = lambda x: torch._dynamo.graph_break()
    torch.compiler.reset()
    compiled = torch.compile(implementation.module, backend="eager")
    for m in (3, 7):
        assert compiled(POOL[:m]).equal(wanted[:m])
    with torch.enable_grad(), pytest.raises(InvarianceError, match="gradients"):
        compiled(POOL[:3])


def test_a_report_says_what_is_called_in_the_mode() -> None:
    """The product with its order where it is called, and not where layers are called one by one."""
    for name, (rows, way, _) in CASES.items():
        implementation = Served(rows, OFF)
        assert [each.name for each in report_model(implementation.module, implementation.context)][3:] == [
            "q + k + v"
        ], name
        implementation.context.switch(STRICT)
        products = report_model(implementation.module, implementation.context)[3:]
        assert [each.name for each in products] == ["q + k + v"] * (way is not LayerMode.APART), name
        assert all(each.sums and each.winners for each in products), name


class Router(nn.Module):
    """As transformers has routers: no nn.Linear, and multiplied by the functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, K).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


def test_no_router_is_passed_over() -> None:
    """Though it is no layer: refused in the mode, the library's before and after."""
    bundle, kernels = planned(ordered(WHOLE))
    gpu = computing_gpu(kernels)
    context, model = Context(lambda op: [bundle], lambda index: gpu), nn.ModuleDict({"router": Router()})
    with patch_model(model, Gemm("a16w16", context), context):
        wanted = model["router"](POOL[:3])
        context.switch(STRICT)
        with pytest.raises(InvarianceError, match=f"3x8x{K}"):
            model["router"](POOL[:3])
        assert [each.name for each in report_model(model, context)] == ["router"]
        context.switch(OFF)
        assert model["router"](POOL[:3]).equal(wanted)
        context.switch(STRICT)
    assert model["router"](POOL[:3]).equal(wanted)
