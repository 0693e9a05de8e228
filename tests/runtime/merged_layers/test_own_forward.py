"""Tests of genkern.runtime.merged_layers.own_forward: forwards that modules are given, and who has them not."""

from __future__ import annotations

import copy
import pickle

import torch
from layers_sharing_x import Attention, Bench, made, x_of
from torch import nn

from genkern.runtime.linear import patch_model
from genkern.runtime.merged_layers.own_forward import give_forward, has_own_forward


def forward(module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return x + module.bias.sum()


def test_a_replaced_forward_is_removed_once() -> None:
    """Once, and not what came later; copies and what pickle loads have their own weights."""
    layer = nn.Linear(2, 2)
    take_away = give_forward(layer, forward)
    assert has_own_forward(layer)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.bias.zero_()
    assert copied(torch.ones(1)).equal(torch.ones(1))
    assert not has_own_forward(pickle.loads(pickle.dumps(layer)))
    take_away()
    assert vars(layer).keys() == vars(nn.Linear(2, 2)).keys()
    take_away = give_forward(layer, forward)
    layer.forward = lambda x: x  # type: ignore[method-assign]
    take_away()
    assert layer(torch.ones(1)).equal(torch.ones(1))


@torch.no_grad()
def test_replicas_multiply_by_their_own_weights(bench: Bench) -> None:
    """Those of nn.DataParallel, of layers and of modules whose layers share an input, which have no such weight."""
    module, other, x = made(Attention()), made(Attention()), x_of(1, 2)
    wanted = other(x)
    with patch_model(module, bench.gemm, bench.context):
        replica = module._replicate_for_data_parallel()
        for name, layer in module.named_children():
            replica._modules[name] = copied = layer._replicate_for_data_parallel()
            copied.weight, copied.bias = getattr(other, name).weight.detach(), None
        assert replica(x).equal(wanted)
        assert bench.launches() == 0
        module(x)
        assert bench.launches() == 1
