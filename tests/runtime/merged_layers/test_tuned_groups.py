"""Tests of genkern.runtime.merged_layers.tuned_groups: which groups are worth a product."""

from __future__ import annotations

import torch
from layers_sharing_x import Attention, Bench, Gated, made
from torch import nn

from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.linear import patch_model, report_model
from genkern.runtime.merged_layers.tuned_groups import groups_of


def names(model: nn.Module, context: Context) -> list[str]:
    return [group.name for group in groups_of(model, context)]


def test_groups_with_a_winner(bench: Bench) -> None:
    """By the merged size alone, in the model's order; without a winner nothing is tried."""
    model = nn.ModuleDict({"attention": made(Attention()), "mlp": made(Gated())})
    assert names(model, bench.context) == ["attention.q_proj + k_proj + v_proj", "mlp.gate + up"]
    assert names(model, Bench([(192, 64)]).context) == ["mlp.gate + up"]
    assert names(model, Bench([(64, 64)]).context) == []


def test_recording_takes_the_merged_size() -> None:
    """Where no layer has a winner of its own, as there is nothing to lose."""
    model = made(Attention())
    watched = Context(lambda op: [], lambda index: None, watches=[lambda *seen: None])
    assert names(model, watched) == ["q_proj + k_proj + v_proj"]
    assert names(model, Context(lambda op: [], lambda index: None)) == []


@torch.no_grad()
def test_recorded_sizes_are_those_of_products_that_are_shared() -> None:
    """What a patched model calls is what is written down."""
    seen = []
    context = Context(
        lambda op: [], lambda index: None, watches=[lambda gpu, problem, choice: seen.append(problem.size)]
    )
    model = made(Attention())
    with patch_model(model, Gemm("a16w16", context), context):
        model(torch.randn(1, 3, 64).bfloat16())
    assert seen == ["3x128x64", "3x64x64"]


def test_a_report_has_a_line_for_each_group(bench: Bench) -> None:
    """Behind those of the layers, also while the model is patched."""
    model = made(Attention())
    before = list(map(str, report_model(model, bench.context)))
    assert before[-1].startswith("q_proj + k_proj + v_proj [128, 64] bfloat16: M = 2: tiled")
    with patch_model(model, bench.gemm, bench.context):
        assert list(map(str, report_model(model, bench.context))) == before
    assert list(map(str, report_model(model, bench.context))) == before


def test_a_flat_buffer_stays_what_it_is(bench: Bench) -> None:
    """Whoever made it, to shard or to reduce it, finds the weights in it."""
    model = made(Attention())
    weights = [layer.weight for layer in (model.q_proj, model.k_proj)]
    buffer = torch.cat([weight.flatten() for weight in weights])
    for weight, part in zip(weights, buffer.split([weight.numel() for weight in weights]), strict=True):
        weight.data = part.view_as(weight)
    assert names(model, bench.context) == []
