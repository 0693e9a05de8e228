"""Tests of genkern.runtime.merged_layers.gated: which modules are gated layers, and what is called in their place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers_sharing_x import Bench, Gated, made, x_of
from torch import nn
from torch.nn import functional

from genkern.runtime.calls.configuration import OFF, WARN
from genkern.runtime.linear import patch_model
from genkern.runtime.merged_layers.gated import gate_of
from genkern.runtime.merged_layers.linears import define_linears
from genkern.runtime.process.torch_ops import define

Does = Callable[[Any, torch.Tensor], torch.Tensor]


class Feed(nn.Module):
    """Three layers, with which `does` computes; `more` are children besides."""

    def __init__(self, does: Does, **more: nn.Module) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 96, bias=False), nn.Linear(64, 96, bias=False)
        self.down = nn.Linear(96, 64, bias=False)
        for name, child in more.items():
            self.add_module(name, child)
        self.does = does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, x)


def usual(self: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
    return out


def by_module(self: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = self.down(self.act(self.gate(x)) * self.up(x))
    return out


GATED: dict[str, tuple[Does, dict[str, nn.Module], int]] = {
    "usual": (usual, {}, 0),
    "activation is a module": (by_module, {"act": nn.SiLU()}, 0),
    "by sigmoid": (lambda self, x: self.down(self.up(x) * (g := self.gate(x)) * torch.sigmoid(g)), {}, 0),
    "through up": (lambda self, x: self.down(self.gate(x) * functional.silu(self.up(x))), {}, 1),
    "dropout that does nothing": (lambda self, x: self.down(self.drop(usual_h(self, x))), {"drop": nn.Dropout()}, 0),
}
OTHERS: dict[str, tuple[Does, dict[str, nn.Module]]] = {
    "gelu": (lambda self, x: self.down(functional.gelu(self.gate(x)) * self.up(x)), {}),
    "gelu as a module": (by_module, {"act": nn.GELU()}),
    "with a residual": (lambda self, x: x + usual(self, x), {}),
    "scaled behind": (lambda self, x: 2 * usual(self, x), {}),
    "scaled in place": (lambda self, x: usual(self, x).mul_(2), {}),
    "with a norm before": (lambda self, x: usual(self, self.norm(x)), {"norm": nn.LayerNorm(64)}),
    "scaled before": (lambda self, x: usual(self, 2 * x), {}),
    "limited": (lambda self, x: self.down(functional.silu(self.gate(x)) * self.up(x).clamp(max=7)), {}),
    "plus one": (lambda self, x: self.down(functional.silu(self.gate(x)) * (self.up(x) + 1)), {}),
    "ungated": (lambda self, x: self.down(self.gate(x) * self.up(x)), {}),
    "two below": (lambda self, x: usual(self, x), {"other": nn.Linear(8, 8)}),
    "x is changed": (lambda self, x: usual(self, x.add_(1)), {}),
    "by the number of rows": (lambda self, x: usual(self, x) * (1 if x.shape[-2] == 1 else 2), {}),
    "fails": (lambda self, x: usual(self, x) + self.nothing, {}),
}


def usual_h(self: Any, x: torch.Tensor) -> torch.Tensor:
    h: torch.Tensor = functional.silu(self.gate(x)) * self.up(x)
    return h


def of(does: Does, more: dict[str, nn.Module]) -> Any:
    torch.manual_seed(0)
    return made(Feed(does, **copy.deepcopy(more)))


@pytest.fixture(scope="module")
def bench() -> Bench:
    """Winners for the merged weight of one to three rows, and the kernel."""
    made = Bench([(192, 64)], rows=(1, 2, 3), gate=True)
    made.gemm.operator = define(made.gemm, "test_gated")
    return made


def gate_launches(builder: Bench) -> list[str]:
    """The kernels that were launched since this was asked last."""
    found = [each.symbol for each in builder.gpu.driver.launched]
    builder.gpu.driver.launched.clear()
    return found


@pytest.mark.parametrize("name", GATED)
@torch.no_grad()
def test_what_is_gated(name: str, bench: Bench) -> None:
    """By what it computes: two launches and a call of down, for x of both shapes, with PyTorch's own bits."""
    does, more, number = GATED[name]
    module = of(does, more)
    found = gate_of(module, (module.gate, module.up))
    assert found is not None
    assert (found.gate, found.down, found.dimensions) == (number, "down", {2, 3})
    for x in (x_of(2), x_of(1, 3), x_of(1, 1)):
        gate_launches(bench)
        with patch_model(module, bench.gemm, bench.context, gated=False) as patch:
            wanted = module(x)
            assert patch.gated == ()
            assert "gate_rows" not in gate_launches(bench)
        with patch_model(module, bench.gemm, bench.context) as patch:
            assert patch.gated == ("",)
            near = 3e-2 if name == "by sigmoid" else 0.0
            torch.testing.assert_close(module(x), wanted, rtol=near, atol=near)
            assert [each == "gate_rows" for each in gate_launches(bench)] == [False, True]


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_other_modules_than_gated_ones_stay_as_they_are(name: str, bench: Bench) -> None:
    """Everything else that a module does is left to it, to the bit."""
    module, x = of(*OTHERS[name]), x_of(2)
    assert gate_of(module, (module.gate, module.up)) is None
    with patch_model(module, bench.gemm, bench.context, gated=False):
        wanted = None if name == "fails" else module(x.clone())
    gate_launches(bench)
    with patch_model(module, bench.gemm, bench.context) as patch:
        assert patch.gated == ()
        assert wanted is None or module(x.clone()).equal(wanted)
    assert "gate_rows" not in gate_launches(bench)


def test_trials_leave_nothing_behind() -> None:
    """No forward, no gradient, no random number; a module in training is not tried."""
    module, state = of(by_module, {"act": nn.SiLU()}), torch.random.get_rng_state()
    module.down.forward = own = lambda x: functional.linear(x, module.down.weight)
    assert gate_of(module, (module.gate, module.up)) is not None
    assert module.down.forward is own
    assert not any("forward" in vars(each) for each in (module.gate, module.up, module.act))
    assert torch.random.get_rng_state().equal(state)
    assert gate_of(module.train(), (module.gate, module.up)) is None


def hooked(module: Any) -> None:
    module.act.register_forward_hook(lambda module, given, out: 2 * out)


def replaced(module: Any) -> None:
    module.act = nn.GELU()


def adapted(module: Any) -> None:
    """As adapters do it: a module around the layer."""
    module.gate = nn.Sequential(module.gate, nn.ReLU())


def other_forward(module: Any) -> None:
    inner = module.up.forward
    module.up.forward = lambda x: -inner(x)


def trained(module: Any) -> None:
    module.train()


def moved(module: Any) -> None:
    module.gate.weight.data = -module.gate.weight.data


def quantised(module: Any) -> None:
    """As torchao does it: another parameter, which knows how it is multiplied."""
    module.up.weight = nn.Parameter(Doubled(-module.up.weight.data), requires_grad=False)


class Doubled(torch.Tensor):
    """A weight of a type of its own."""


@pytest.mark.parametrize("change", [hooked, replaced, adapted, other_forward, trained, moved, quantised])
@torch.no_grad()
def test_what_changes_later_counts(change: Callable[[Any], None], bench: Bench) -> None:
    """The module's own forward is called from then on."""
    module, x = of(by_module, {"act": nn.SiLU()}), x_of(2)
    with patch_model(module, bench.gemm, bench.context):
        module(x)
        assert "gate_rows" in gate_launches(bench)
        change(module)
        found = module(x)
        assert "gate_rows" not in gate_launches(bench)
    torch.testing.assert_close(found, module(x), rtol=3e-2, atol=3e-2)


@torch.no_grad()
def test_hooks_of_the_layer_below(bench: Bench) -> None:
    """It is called as ever."""
    module, x, seen = of(usual, {}), x_of(2), []
    module.down.register_forward_hook(lambda module, given, out: seen.append(given[0].shape))
    with patch_model(module, bench.gemm, bench.context):
        gate_launches(bench)
        module(x)
        # A hook that is there before is no reason to look: the module is not tried on numbers then.
        assert "gate_rows" not in gate_launches(bench)
    module.down._forward_hooks.clear()
    with patch_model(module, bench.gemm, bench.context):
        module.down.register_forward_hook(lambda module, given, out: seen.append(given[0].shape))
        module(x)
        assert "gate_rows" in gate_launches(bench)
    assert seen == [(2, 96), (2, 96)]


def test_gradients_and_autocast(bench: Bench) -> None:
    """Are the module's own."""
    module, x = of(usual, {}).requires_grad_(True), x_of(2)
    with patch_model(module, bench.gemm, bench.context):
        gate_launches(bench)
        module(x).sum().backward()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            module(x)
        assert "gate_rows" not in gate_launches(bench)
    assert all(each.grad is not None for each in module.parameters())


@torch.no_grad()
def test_without_the_kernel(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of before, a product that is no winner's, a mode in which bits may not vary, and a launch that fails:
    all are served as before.
    """
    module, before = of(usual, {}), Bench([(192, 64)])
    x = x_of(2)
    with patch_model(module, before.gemm, before.context):
        wanted = module(x)
        assert before.launches() == 1
    with patch_model(module, bench.gemm, bench.context):
        gate_launches(bench)
        # More rows than products are merged for.
        module(x_of(1025))
        assert "gate_rows" not in gate_launches(bench)
        bench.context.switch(WARN)
        try:
            module(x)
            assert "gate_rows" not in gate_launches(bench)
        finally:
            bench.context.switch(OFF)
        assert module(x).equal(wanted)
        assert "gate_rows" in gate_launches(bench)
    with patch_model(module, bench.gemm, bench.context):
        module(x)
        fails = iter((False, True))
        launch = bench.gpu.driver._write_down
        monkeypatch.setattr(bench.gpu.driver, "_write_down", lambda *asked: 719 if next(fails) else launch(*asked))
        assert module(x).equal(wanted)
        monkeypatch.undo()
        gate_launches(bench)
        assert module(x).equal(wanted)
        assert "gate_rows" not in gate_launches(bench)


@torch.no_grad()
def test_a_compiled_module_is_left_to_the_compiler(bench: Bench) -> None:
    """It makes one kernel of both operations itself; the product is genkern's operator."""
    module, x = of(usual, {}), x_of(2)
    linears, targets = define_linears(bench.gemm, "test_gated_linears"), []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    with patch_model(module, bench.gemm, bench.context, lambda: linears):
        wanted = module(x)
        gate_launches(bench)
        found = torch.compile(module, backend=backend, fullgraph=True)(x)
        assert "gate_rows" not in gate_launches(bench)
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)
    assert sum("test_gated_linears" in each for each in targets) == 1


@torch.no_grad()
def test_copies_and_what_is_saved(bench: Bench) -> None:
    """A copy of a patched module is one without a patch, with weights of its own; what is saved has the same names."""
    module, x = of(usual, {}), x_of(2)
    names = list(module.state_dict())
    with patch_model(module, bench.gemm, bench.context):
        wanted, copied = module(x), copy.deepcopy(module)
        assert list(module.state_dict()) == names
        copied.gate.weight.zero_()
        gate_launches(bench)
        assert not copied(x).any()
        assert "gate_rows" not in gate_launches(bench)
        assert module(x).equal(wanted)


@torch.no_grad()
def test_layers_of_tests_are_gated(bench: Bench) -> None:
    """Of those that are called with a matrix alone, matrices."""
    module = made(Gated())
    found = gate_of(module, (module.gate, module.up))
    assert found is not None
    assert found.dimensions == {2}
