"""Patches of models and of parts of them, made and undone in any order: values stay, and in the end nothing is left."""

from __future__ import annotations

import copy
import gc
import random

import pytest
import torch
from layers_sharing_x import Attention, Bench, Gated, made, x_of
from torch import nn

from genkern.runtime.calls.configuration import OFF, WARN
from genkern.runtime.linear import Patch, patch_model
from genkern.runtime.merged_layers.tuned_groups import known

LIBRARY = nn.functional.linear


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(96, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.gated, self.router = Attention(), Gated(), Router()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.attention(x)
        return self.gated(x.view(-1, 64)), self.router(x)


def close(model: nn.Module, x: torch.Tensor, wanted: tuple[torch.Tensor, ...]) -> bool:
    return all(one.allclose(other, rtol=3e-2, atol=3e-2) for one, other in zip(model(x), wanted, strict=True))


@pytest.mark.parametrize("seed", range(12))
@torch.no_grad()
def test_nothing_is_left(seed: int) -> None:
    """Of patches of two models and their parts, with copies, weights that move and switches of the mode between."""
    chance, builder = random.Random(seed), Bench([(128, 64), (192, 64), (96, 64)], rows=(1, 2))
    torch.manual_seed(seed)
    models, x = [made(Block()) for _ in range(2)], x_of(1, 2, seed=seed)
    parts = [part for model in models for part in (model, model.attention, model.gated, model.router)]
    wanted, patches = [model(x) for model in models], list[Patch]()
    listeners = len(builder.context._listeners), len(builder.context._switches)

    def undo() -> None:
        if patches:
            patches.pop(chance.randrange(len(patches))).undo()

    for _ in range(chance.randint(3, 14)):
        number = chance.randrange(2)
        step = chance.choice(["patch", "patch", "undo", "undo", "switch", "copy", "move"])
        if step == "patch":
            patches.append(patch_model(chance.choice(parts), builder.gemm, builder.context))
        elif step == "undo":
            undo()
        elif step == "switch":
            builder.context.switch(chance.choice([OFF, WARN]))
        elif step == "copy":
            assert close(copy.deepcopy(models[number]), x, wanted[number])
        else:
            weight = models[number].attention.k_proj.weight
            weight.data = weight.data.clone()
        assert all(close(model, x, own) for model, own in zip(models, wanted, strict=True)), step
    while patches:
        undo()
    builder.launches()
    assert all(close(model, x, own) for model, own in zip(models, wanted, strict=True))
    assert builder.launches() == 0
    assert nn.functional.linear is LIBRARY
    modules = [module for model in models for module in model.modules()]
    assert not any({"forward", "_replicate_for_data_parallel"} & vars(module).keys() for module in modules)
    assert not any(module in known for module in modules)
    gc.collect()
    assert (len(builder.context._listeners), len(builder.context._switches)) == listeners
