"""Groups of layers that get the same tensor and whose common product is tuned."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from genkern.gemm.dtypes import BY_TORCH
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.runtime.calls.call_arguments import row_majors
from genkern.runtime.calls.context import Context
from genkern.runtime.launch.prepared_call import LiveGpu
from genkern.runtime.merged_layers.merged_weight import can_merge
from genkern.runtime.merged_layers.own_forward import has_own_forward
from genkern.runtime.merged_layers.shared_inputs import candidate_groups, groups_with_same_input


@dataclass(frozen=True)
class Group:
    """Layers of `parent`, in the order of their calls, that get the same tensor.

    prefix: the parent's name in the model, with a dot; "" for the model itself.
    names: the layers' names in the parent, joined by " + ".
    parent: the module.
    layers: the layers.
    """

    prefix: str
    names: str
    parent: torch.nn.Module
    layers: tuple[torch.nn.Linear, ...]

    @property
    def name(self) -> str:
        """The group's name in messages."""
        return self.prefix + self.names


# Groups of patched modules, which cannot be tried again while they are patched: names and layers.
known: weakref.WeakKeyDictionary[torch.nn.Module, list[tuple[str, tuple[torch.nn.Linear, ...]]]]
known = weakref.WeakKeyDictionary()


def groups_of(model: torch.nn.Module, context: Context) -> Iterator[Group]:
    """Yield every group whose weights can be merged and whose merged weight has a winner, in the model's order.

    If calls are recorded or logged, also groups of which no layer has a winner. The groups do not depend on the mode:
    merged weights stay in place, since graphs may read them.
    """
    for name, parent in model.named_modules():
        prefix = f"{name}." if name else ""
        if parent in known:
            yield from (Group(prefix, names, parent, layers) for names, layers in known[parent])
        elif not has_own_forward(parent):
            yield from _found(prefix, parent, context)


def _found(prefix: str, parent: torch.nn.Module, context: Context) -> Iterator[Group]:
    for pool in candidate_groups(parent):
        # Trying a module takes time, so only modules are tried for which a winner might exist.
        runs = _runs(list(pool.values()))
        if not (context.is_watched or any(is_tuned(run, context) for run in runs)):
            continue
        for names in groups_with_same_input(parent, pool):
            layers = tuple(pool[each] for each in names)
            is_wanted = context.is_watched and not any(is_tuned([layer], context) for layer in layers)
            if (is_wanted or is_tuned(layers, context)) and can_merge(layers):
                yield Group(prefix, " + ".join(names), parent, layers)


def is_tuned(layers: Sequence[Any], context: Context, row_major: bool = True) -> bool:
    """Return True if the layers' common product has winners for any M, in any mode; `row_major` is the layout of x."""
    gpu, problem = _asked([layer.weight for layer in layers], has_bias(layers[0]), context, row_major)
    return gpu is not None and problem is not None and context.is_tuned(gpu, problem)


def winners_of(layers: Sequence[Any], context: Context, row_major: bool = True) -> list[tuple[int, str]]:
    """Return each M that the layers' common product is tuned for, with the winner; `row_major` is the layout of x."""
    gpu, problem = _asked([layer.weight for layer in layers], has_bias(layers[0]), context, row_major)
    return [] if gpu is None or problem is None else context.tuned(gpu, problem)


def sums_of(weights: Sequence[Any], has_bias: bool, context: Context, row_major: bool = True) -> str:
    """Return the order of sums of the common product with the weights [N, K] for all M; `row_major` is the layout of x.

    "" if calls need not be batch-invariant, or if the product has no winners with one order of sums.
    """
    gpu, problem = _asked(weights, has_bias, context, row_major)
    return "" if gpu is None or problem is None else context.sums(gpu, problem)


def has_bias(layer: Any) -> bool:
    """Return True if the layer has a bias. Modules other than nn.Linear may have no such attribute."""
    return getattr(layer, "bias", None) is not None


def _asked(
    weights: Sequence[Any], has_bias: bool, context: Context, row_major: bool
) -> tuple[LiveGpu | None, GemmProblem | None]:
    """Return the weights' GPU and the problem of their common product for one row of x.

    The problem is None for types that no kernel multiplies, and for weights that are not matrices.
    """
    weight = weights[0]
    dtype, gpu = BY_TORCH.get(str(weight.dtype)), context.gpu(weight.get_device())
    if dtype is None or weight.dim() != 2:
        return gpu, None
    size = 1, sum(int(each.shape[0]) for each in weights), int(weight.shape[-1])
    types, of_weight = (DEFAULT_OP, dtype, dtype, dtype), not row_majors(weight)[0]
    return gpu, GemmProblem(*size, *types, row_major, of_weight, has_bias)


def _runs(layers: Sequence[torch.nn.Linear]) -> Iterator[Sequence[torch.nn.Linear]]:
    """Yield runs of consecutive layers: layers that get the same tensor are nearly always consecutive."""
    count = len(layers)
    return (layers[start:end] for start in range(count) for end in range(start + 2, count + 1))
