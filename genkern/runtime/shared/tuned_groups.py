"""The layers of a model that are given the same tensor, where one product of them is worth it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from genkern.gemm.dtypes import BY_TORCH
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.runtime.context import Context
from genkern.runtime.given import row_majors
from genkern.runtime.launch.prepared import LiveGpu
from genkern.runtime.shared.merged_weight import can_merge
from genkern.runtime.shared.own_forward import has_own_forward
from genkern.runtime.shared.siblings import alike, given_the_same


@dataclass(frozen=True)
class Group:
    """Layers of `parent`, in the order in which it calls them, with one tensor for all. `names` are theirs there, and
    `prefix` what stands before them in the model.
    """

    prefix: str
    names: str
    parent: torch.nn.Module
    layers: tuple[torch.nn.Linear, ...]

    @property
    def name(self) -> str:
        """For people."""
        return self.prefix + self.names


# Names and layers of what trials found, while a module is patched and cannot be tried again.
known: weakref.WeakKeyDictionary[torch.nn.Module, list[tuple[str, tuple[torch.nn.Linear, ...]]]]
known = weakref.WeakKeyDictionary()


def groups_of(model: torch.nn.Module, context: Context) -> Iterator[Group]:
    """Every group that has a winner for the merged weight, in the model's order; where calls are recorded or logged
    also those of which no layer has one for itself. Which these are does not depend on the mode: weights lie where they
    lie, since graphs may read them.
    """
    for name, parent in model.named_modules():
        prefix = f"{name}." if name else ""
        if parent in known:
            yield from (Group(prefix, names, parent, layers) for names, layers in known[parent])
        elif not has_own_forward(parent):
            yield from _found(prefix, parent, context)


def _found(prefix: str, parent: torch.nn.Module, context: Context) -> Iterator[Group]:
    for pool in alike(parent):
        # A module is tried where there is anything to win.
        runs = _runs(list(pool.values()))
        if not (context.is_watched or any(is_tuned(run, context) for run in runs)):
            continue
        for names in given_the_same(parent, pool):
            layers = tuple(pool[each] for each in names)
            is_wanted = context.is_watched and not any(is_tuned([layer], context) for layer in layers)
            if (is_wanted or is_tuned(layers, context)) and can_merge(layers):
                yield Group(prefix, " + ".join(names), parent, layers)


def is_tuned(layers: Sequence[Any], context: Context, row_major: bool = True) -> bool:
    """Whether the layers' product as one has winners, of x that lies so, for any M and in whatever mode."""
    gpu, problem = _asked([layer.weight for layer in layers], has_bias(layers[0]), context, row_major)
    return gpu is not None and problem is not None and context.is_tuned(gpu, problem)


def winners_of(layers: Sequence[Any], context: Context, row_major: bool = True) -> list[tuple[int, str]]:
    """For which M the layers' product as one is tuned, of x that lies so, and who won for each."""
    gpu, problem = _asked([layer.weight for layer in layers], has_bias(layers[0]), context, row_major)
    return [] if gpu is None or problem is None else context.tuned(gpu, problem)


def sums_of(weights: Sequence[Any], has_bias: bool, context: Context, row_major: bool = True) -> str:
    """In which order the product with the weights [N, K] as one adds up for every M, of x that lies so, where all must
    have one and can.
    """
    gpu, problem = _asked(weights, has_bias, context, row_major)
    return "" if gpu is None or problem is None else context.sums(gpu, problem)


def has_bias(layer: Any) -> bool:
    """Whether it adds one; modules other than nn.Linear need have no such name."""
    return getattr(layer, "bias", None) is not None


def _asked(
    weights: Sequence[Any], has_bias: bool, context: Context, row_major: bool
) -> tuple[LiveGpu | None, GemmProblem | None]:
    """The weights' GPU, and their product as one with one row of an x that lies so; None of weights of other types."""
    weight = weights[0]
    dtype, gpu = BY_TORCH.get(str(weight.dtype)), context.gpu(weight.get_device())
    if dtype is None or weight.dim() != 2:
        return gpu, None
    size = 1, sum(int(each.shape[0]) for each in weights), int(weight.shape[-1])
    types, of_weight = (DEFAULT_OP, dtype, dtype, dtype), not row_majors(weight)[0]
    return gpu, GemmProblem(*size, *types, row_major, of_weight, has_bias)


def _runs(layers: Sequence[torch.nn.Linear]) -> Iterator[Sequence[torch.nn.Linear]]:
    """Layers that follow each other: what a module gives one tensor is seldom anything else."""
    count = len(layers)
    return (layers[start:end] for start in range(count) for end in range(start + 2, count + 1))
