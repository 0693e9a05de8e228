"""Training of networks: small neural networks that correct the predictor beside trees, fitted by PyTorch.

Trees tell apart what differs by a step, networks follow what is smooth in tiles and sizes: they err differently, and
their mean errs less than either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from genkern.errors import InputError
from genkern.search.guided.network import FAR, Network
from genkern.search.guided.trees import Numbers

if TYPE_CHECKING:
    import torch

# By folds of 168 recorded sizes (2026-11-27), first choices beside trees: half the width or a third of the steps lose
# one percent more, as relu or another layer does; half as wide again, four networks for two, other rates of dropout,
# decays and shares of the level change less than another seed does.
_HIDDEN = (512, 512, 256)
_NETWORKS = 2
_DROPOUT, _RATE, _DECAY = 0.1, 2e-3, 1e-4
# Each step sees so many rows of so many sizes; every size is seen so many times.
_SIZES, _ROWS, _PASSES = 64, 48, 120
# A row counts by how near to the best it is, with this many octaves as if it were the best.
_SOFT_OCTAVES = 0.15
# What errs alike for all configs of a size puts none before another; so much of it counts, since it helps.
_LEVEL = 0.5


def nearness(octaves: Numbers) -> Numbers:
    """[rows] how much each row of a size counts that is so many octaves slower than its best."""
    weights: Numbers = 1.0 / (_SOFT_OCTAVES + octaves)
    return weights


def fitted(matrices: Sequence[Numbers], octaves: Sequence[Numbers], names: Sequence[str]) -> Network:
    """Networks of sizes with features [rows, names] and octaves [rows] each, on a GPU where PyTorch has one.

    One seed gives one network on one machine; PyTorch's sums differ from one kind of machine to another. Raises
    InputError where the GPU has no room.
    """
    import torch

    try:
        return _fitted(matrices, octaves, names, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    except torch.OutOfMemoryError:
        raise InputError(
            "the GPU has no memory left for training: end what works there, or say CUDA_VISIBLE_DEVICES= for the CPU"
        ) from None


def _fitted(
    matrices: Sequence[Numbers], octaves: Sequence[Numbers], names: Sequence[str], device: torch.device
) -> Network:
    import torch

    rows = np.concatenate(matrices).astype(np.float32)
    centre, spread = rows.mean(axis=0), rows.std(axis=0) + np.float32(1e-3)
    x = torch.from_numpy(np.clip((rows - centre) / spread, -FAR, FAR)).to(device)
    weights = list(map(nearness, octaves))
    level = np.mean([np.average(each, weights=weight) for each, weight in zip(octaves, weights, strict=True)])
    y = torch.from_numpy((np.concatenate(octaves) - level).astype(np.float32)).to(device)
    # Of size s from s to s + 1, so that one search finds a row of any.
    drawn = np.concatenate([place + np.cumsum(weight) / weight.sum() for place, weight in enumerate(weights)])
    drawn_by = torch.from_numpy(drawn).to(device)

    random = torch.Generator(device).manual_seed(0)
    layers = _layers(len(names), random)
    optimizer = torch.optim.AdamW(
        [{"params": [w for w, _ in layers]}, {"params": [b for _, b in layers], "weight_decay": 0.0}],
        _RATE,
        weight_decay=_DECAY,
    )
    sizes = min(_SIZES, len(octaves))
    steps = math.ceil(len(octaves) / sizes) * _PASSES
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=0.1)
    shape = _NETWORKS, sizes, _ROWS
    for _ in range(steps):
        size = torch.randint(len(octaves), (*shape[:2], 1), generator=random, device=device)
        of = size + torch.rand(shape, generator=random, device=device, dtype=torch.float64)
        row = torch.searchsorted(drawn_by, of.flatten()).clamp_(max=len(y) - 1)
        errors = _passed(x[row].view(_NETWORKS, sizes * _ROWS, -1), layers, random) - y[row].view(_NETWORKS, -1)
        errors = errors.view(shape)
        alike = errors.mean(dim=2, keepdim=True)
        cost = ((errors - alike) ** 2).mean(dim=(1, 2)) + _LEVEL * (alike**2).mean(dim=(1, 2))
        optimizer.zero_grad(set_to_none=True)
        cost.sum().backward()
        optimizer.step()
        schedule.step()
    arrays = [[each.detach().cpu().numpy() for each in layer] for layer in layers]
    return Network(np.array(names), centre, spread, tuple(w for w, _ in arrays), tuple(b[:, 0] for _, b in arrays))


def _layers(inputs: int, random: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights [networks, inputs, outputs] and biases [networks, 1, outputs] to begin with (He et al., 2015)."""
    import torch

    layers = []
    for before, after in pairwise((inputs, *_HIDDEN, 1)):
        start = torch.randn((_NETWORKS, before, after), generator=random, device=random.device)
        start *= math.sqrt((1.0 if before == inputs else 2.0) / before)
        layers.append(
            (start.requires_grad_(), torch.zeros((_NETWORKS, 1, after), device=random.device, requires_grad=True))
        )
    return layers


def _passed(
    x: torch.Tensor, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], random: torch.Generator
) -> torch.Tensor:
    """[networks, rows] what the networks say of rows [networks, rows, features] while they learn."""
    import torch

    values = x
    *hidden, (weight, bias) = layers
    for place, (of, on) in enumerate(hidden):
        values = torch.nn.functional.silu(torch.baddbmm(on, values, of))
        if place < len(hidden) - 1:
            kept = torch.rand(values.shape, generator=random, device=random.device) >= _DROPOUT
            values = values * kept / (1.0 - _DROPOUT)
    return torch.baddbmm(bias, values, weight)[..., 0]
