"""Tests of genkern.runtime.experts_modules: experts modules that call winners, and those that are left as they are."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from recording_gpu import FakeGpu
from torch import nn

import genkern
from genkern.runtime.calls.context import Context
from genkern.runtime.experts_modules import patch_experts, report_experts
from genkern.runtime.linear import Patch
from genkern.runtime.routed.experts import Experts

OP = "fused_moe"


class ExpertsModule(nn.Module):
    """As transformers' @use_experts_implementation leaves MixtralExperts, of the sizes that are tuned here."""

    def __init__(self, experts: int = 8, width: int = 128, hidden: int = 256) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * width, hidden).bfloat16() / 16)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, width).bfloat16() / 16)
        self.act_fn: Any = nn.SiLU()
        self.has_gate = self.is_concatenated = True
        self.has_bias = self.is_transposed = self.has_post_expert_norm = self._is_expert_parallel = False

    def _apply_gate(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, dim=-1)
        out: torch.Tensor = self.act_fn(gate) * up
        return out

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(hidden_states)
        for token, number in ((t, k) for t in range(len(out)) for k in range(top_k_index.shape[1])):
            expert = top_k_index[token, number]
            rows = self._apply_gate(nn.functional.linear(hidden_states[token], self.gate_up_proj[expert]))
            out[token] += nn.functional.linear(rows, self.down_proj[expert]) * top_k_weights[token, number]
        return out


def model(**said: Any) -> nn.ModuleDict:
    """A model whose experts say this of themselves."""
    made = ExpertsModule(**{name: said.pop(name) for name in ("experts", "width", "hidden") if name in said})
    for name, value in said.items():
        setattr(made, name, value)
    return nn.ModuleDict({"mlp": nn.ModuleDict({"experts": made}), "head": nn.Linear(4, 4)})


def given(tokens: int = 16) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    weights, ids = torch.rand(tokens, 8).topk(2)
    return torch.randn(tokens, 256).bfloat16(), ids, weights.softmax(-1)


def patched(whole: nn.Module, context: Context) -> Patch:
    return patch_experts(whole, OP, lambda: Experts(OP, context), context)


@torch.no_grad()
def test_tuned_experts_call_winners(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """Both products, until the patch is taken off; a copy of the module calls them with its own weights."""
    whole = model()
    experts = whole["mlp"]["experts"]  # type: ignore[index]
    with patched(whole, routed_context) as patch:
        assert patch.layers == ("mlp.experts",)
        experts(*given())
        assert [each.symbol.split("_")[0] for each in routed_gpu.driver.launched] == [
            "order",
            "matmul",
            "matmul",
            "sum",
        ]
        other = copy.deepcopy(experts)
        other(*given())
        address = other.gate_up_proj.data_ptr().to_bytes(8, "little")
        assert address in routed_gpu.driver.launched[5].parameters
    routed_gpu.driver.launched.clear()
    experts(*given(2))
    assert "forward" not in vars(experts)
    assert not routed_gpu.driver.launched


@torch.no_grad()
def test_what_a_layer_computes_is_what_the_module_does(untuned: Context) -> None:
    """As the library serves it where calls are only written down; to what bfloat16 rounds."""
    watching = Context(lambda op: [], lambda index: None, watches=[lambda *_: None])
    for activation in (nn.SiLU(), nn.GELU(), nn.ReLU()):
        whole = model(act_fn=activation)
        wanted = whole["mlp"]["experts"](*given())  # type: ignore[index]
        with patched(whole, watching) as patch:
            assert patch.layers == ("mlp.experts",)
            found = whole["mlp"]["experts"](*given())  # type: ignore[index]
        assert 0 < (found - wanted).float().norm() < 2**-6 * wanted.float().norm()
    assert patched(whole, untuned).layers == ()


@pytest.mark.parametrize(
    "said",
    [
        {"is_transposed": True},
        {"is_concatenated": False},
        {"has_bias": True},
        {"has_post_expert_norm": True},
        {"_is_expert_parallel": True},
        {"act_fn": nn.GELU(approximate="tanh")},
        {"act_fn": nn.Sequential(nn.Hardtanh(-100, 10), nn.SiLU())},
        {"width": 64},
        {"experts": 9},
        {"forward": lambda *_: None},
    ],
    ids=itertools.count(),
)
def test_other_experts_stay_as_they_are(routed_context: Context, said: dict[str, Any]) -> None:
    """Weights that lie otherwise, another gate, sizes that nobody tuned, and a forward of somebody else's."""
    assert patched(model(**said), routed_context).layers == ()


@torch.no_grad()
def test_calls_that_are_the_modules_own(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """In another type, under autocast, with weights for every expert, and what was shared among ranks since."""
    whole = model()
    experts: Any = whole["mlp"]["experts"]  # type: ignore[index]
    x, ids, weights = given(2)
    with patched(whole, routed_context):
        with torch.autocast("cpu", torch.bfloat16):
            experts(x, ids, weights)
        experts(x, ids, torch.rand(2, 8))
        with pytest.raises(RuntimeError, match=r"same dtype|expected m1 and m2"):
            experts(x.float(), ids, weights)
        experts._is_expert_parallel = True
        experts(x, ids, weights)
    assert not routed_gpu.driver.launched


def test_a_models_layers_and_experts(routed_context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """genkern.patch and genkern.report see both kinds, and one undo() takes both off."""
    monkeypatch.setattr("genkern.runtime.model.default_context", lambda: routed_context)
    whole = model()
    patch = genkern.patch(whole)
    assert patch.layers == ("mlp.experts",)
    assert [each.name for each in genkern.report(whole)] == [
        *("head", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ]
    patch.undo()
    assert "forward" not in vars(whole["mlp"]["experts"])  # type: ignore[index]


def test_report(routed_context: Context, untuned: Context) -> None:
    """A line for each product, with the tokens that were tuned and who won there."""
    lines = [str(each) for each in report_experts(model(), OP, routed_context)]
    config = "tiled_BM16_BN64_BK64_GM1_SK1_nW4_nS3"
    assert lines == [
        f"mlp.experts.gate_up_proj [256, 256] bfloat16: M = 16: {config}",
        f"mlp.experts.down_proj [256, 128] bfloat16: M = 16: {config}",
    ]
    assert all("not tuned" in str(each) for each in report_experts(model(), OP, untuned))
