"""Train small neural networks that correct the predictor beside trees, with PyTorch.

Trees separate configs that differ by a step; networks follow functions that are smooth in tiles and sizes. Their errors
differ, and the mean of both has a smaller error than either.
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

# Chosen on folds of 168 recorded sizes by the first choices beside trees: half the width or a third of the steps lose
# one percent more, and so do relu or a further layer. Other changes (1.5 times the width, four networks, other dropout,
# decay or shares of the level) have less effect than another seed.
_HIDDEN = (512, 512, 256)
_NETWORKS = 2
_DROPOUT, _RATE, _DECAY = 0.1, 2e-3, 1e-4
# Most sizes per step, rows drawn per size, and how often a size is drawn on average.
_SIZES, _ROWS, _PASSES = 64, 48, 120
# A row's weight is 1 / (this + its octaves behind the best).
_SOFT_OCTAVES = 0.15
# Weight of the error common to all configs of a size. It does not change their ranking, but a part of it helps.
_LEVEL = 0.5


def nearness(octaves: Numbers) -> Numbers:
    """Return the weights [rows] of configs that are this number of octaves slower than the best."""
    weights: Numbers = 1.0 / (_SOFT_OCTAVES + octaves)
    return weights


def fitted(matrices: Sequence[Numbers], octaves: Sequence[Numbers], names: Sequence[str]) -> Network:
    """Train networks on sizes with features [rows, names] and octaves [rows] each, on a GPU if PyTorch has one.

    The result is reproducible on one machine; PyTorch's sums differ between kinds of machines. Raises InputError if the
    GPU has not enough memory.
    """
    import torch

    try:
        return _fitted(matrices, octaves, names, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    except torch.OutOfMemoryError:
        raise InputError(
            "the GPU has no memory left for training: end other programs, or set CUDA_VISIBLE_DEVICES= to use the CPU"
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
    # The cumulative weights of size s go from s to s + 1, so one searchsorted finds a row of any size.
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
    """Return initial weights [networks, inputs, outputs] and biases [networks, 1, outputs] (He et al., 2015)."""
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
    """Return the networks' outputs [networks, rows] for inputs [networks, rows, features], with dropout."""
    import torch

    values = x
    *hidden, (weight, bias) = layers
    for place, (of, on) in enumerate(hidden):
        values = torch.nn.functional.silu(torch.baddbmm(on, values, of))
        if place < len(hidden) - 1:
            kept = torch.rand(values.shape, generator=random, device=random.device) >= _DROPOUT
            values = values * kept / (1.0 - _DROPOUT)
    return torch.baddbmm(bias, values, weight)[..., 0]
