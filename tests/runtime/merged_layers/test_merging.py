"""Tests of genkern.runtime.merged_layers.merging: groups that become one product, and what they were again."""

from __future__ import annotations

import itertools

import pytest
import torch
from layers_sharing_x import Attention, Bench, Gated, made, x_of
from torch import nn

from genkern.runtime.linear import patch_model


class Block(nn.Module):
    """Both in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Gated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.attention(x))
        return out


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@torch.no_grad()
def test_patches_come_off_in_any_order(bench: Bench, order: tuple[int, ...]) -> None:
    """Of one model, of a part of it, and of another: what is left is what was there."""
    one, other, x = made(Block()), made(Block()), x_of(2)
    wanted, of_other = one(x), other(x)
    models = one, one.attention, other
    patches = [patch_model(each, bench.gemm, bench.context) for each in models]
    assert [len(patch.merged) for patch in patches] == [2, 0, 2]
    for number in order:
        patches[number].undo()
        assert one(x).equal(wanted)
        assert other(x).equal(of_other)
    bench.launches()
    assert one(x).equal(wanted)
    assert bench.launches() == 0
    modules = [*one.modules(), *other.modules()]
    assert not any("forward" in vars(module) for module in modules)
    # Patched again nothing is moved: graphs that were captured before still read what is there.
    places = {name: each.data_ptr() for name, each in one.named_parameters()}
    with patch_model(one, bench.gemm, bench.context) as patch:
        assert len(patch.merged) == 2
        assert one(x).equal(wanted)
    assert {name: each.data_ptr() for name, each in one.named_parameters()} == places


@torch.no_grad()
def test_no_memory_leaves_layers_apart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be merged is called as it is, and it is said."""
    model, x = made(Block()), x_of(2)
    wanted, cat = model(x), torch.cat

    def full(tensors: list[torch.Tensor], *rest: object) -> torch.Tensor:
        if tensors[0].shape == (96, 64):
            raise torch.OutOfMemoryError("full")
        return cat(tensors, *rest)

    monkeypatch.setattr(torch, "cat", full)
    with caplog.at_level("INFO", "genkern"), patch_model(model, bench.gemm, bench.context) as patch:
        assert patch.merged == ("attention.q_proj + k_proj + v_proj",)
        assert model(x).equal(wanted)
    assert "no memory to merge mlp.gate + up" in caplog.text
    assert "1 groups of layers are called as one product each: 0.0 MiB" in caplog.text


@torch.no_grad()
def test_a_forward_that_came_later_stays(bench: Bench) -> None:
    """Somebody's function around a patched module is theirs to take off."""
    model, x = made(Block()), x_of(2)
    wanted = model(x)
    patch = patch_model(model, bench.gemm, bench.context)
    inner = model.attention.forward
    model.attention.forward = lambda x: inner(x)
    patch.undo()
    assert model(x).equal(wanted)
    del model.attention.forward
    assert model(x).equal(wanted)
