"""Finds linear layers of a module that get the same tensor, by running the module on a few rows of zeros."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from genkern.gemm.dtypes import BY_TORCH
from genkern.runtime.calls.plain_tensor import PLAIN
from genkern.runtime.merged_layers.own_forward import has_own_forward

# Shapes of x without K with which a module is tried: (batch, tokens), or rows.
_TRIED = ((1, 2), (2,))
# Alignment that kernels require, also of each layer's part of a merged weight.
_ALIGNED_BYTES = 16


class _AllSeen(BaseException):
    """Ends a trial. A BaseException, so that no `except Exception` of a model catches it."""


def candidate_groups(parent: torch.nn.Module) -> Iterator[dict[str, torch.nn.Linear]]:
    """Yield groups of the module's own linear layers, by name, that could be one product.

    The layers of a group have the same K, type and device, and all or none of them have a bias. Layers with hooks or a
    forward of their own, and layers whose weight is not a plain tensor, are left out.
    """
    pools: dict[object, dict[str, torch.nn.Linear]] = {}
    for name, layer in parent.named_children():
        if type(layer) is not torch.nn.Linear or has_hooks(layer) or has_own_forward(layer):
            continue
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if weight is None or str(weight.dtype) not in BY_TORCH or not all(map(_is_plain, filter_none(weight, bias))):
            continue
        if weight.dim() == 2 and weight.shape[1] * weight.element_size() % _ALIGNED_BYTES == 0:
            kind = weight.shape[1], weight.dtype, weight.device, bias is None
            pools.setdefault(kind, {})[name] = layer
    for pool in pools.values():
        if len(pool) > 1 and len({id(layer.weight) for layer in pool.values()}) == len(pool):
            yield pool


def groups_with_same_input(parent: torch.nn.Module, layers: dict[str, torch.nn.Linear]) -> list[tuple[str, ...]]:
    """Return groups of the layers, by name in the order of their calls, that get one unchanged tensor.

    The module's forward is run on zeros, with None for every other required argument, until there were as many calls of
    the layers as there are layers, or the forward ends or fails. A layer that is called more than once belongs to no
    group. Each layer's result is a part of a wider tensor, as it is in a shared product.
    """
    for rows in _TRIED:
        seen = _tried(parent, layers, rows)
        calls = [name for name, *_ in seen]
        groups: dict[tuple[int, int], list[str]] = {}
        for name, x, version in seen:
            if calls.count(name) == 1:
                groups.setdefault((id(x), version), []).append(name)
        if found := [tuple(group) for group in groups.values() if len(group) > 1]:
            return found
    return []


def has_hooks(module: torch.nn.Module) -> bool:
    """Return True if hooks see, and may change, the module's input or output."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


@contextlib.contextmanager
def with_forwards(forwards: Mapping[torch.nn.Module, Callable[[Any], Any]]) -> Iterator[None]:
    """Within the block, replace the modules' forwards by these functions."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            del vars(module)["forward"]
            if own is not None:
                vars(module)["forward"] = own


def filter_none(*given: Any) -> list[Any]:
    return [each for each in given if each is not None]


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN and not tensor.is_inference() and tensor.is_contiguous() and tensor.numel() > 0


def _tried(
    parent: torch.nn.Module, layers: dict[str, torch.nn.Linear], rows: Sequence[int]
) -> list[tuple[str, Any, int]]:
    """Return name, input tensor and its version for each call of a layer in a trial, in the order of calls."""
    seen: list[tuple[str, Any, int]] = []

    def recorder(name: str, layer: torch.nn.Linear) -> Any:
        def forward(input: Any) -> Any:
            seen.append((name, input, input._version))
            if len(seen) == len(layers):
                raise _AllSeen
            width = layer.out_features
            return input.new_zeros((*input.shape[:-1], 2 * width))[..., :width]

        return forward

    function = type(parent).forward
    try:
        _, first, *others = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    needed = {each.name: None for each in others if each.default is each.empty and each.kind not in _ANY_NUMBER}
    if first.kind in _ANY_NUMBER or first.kind is first.KEYWORD_ONLY:
        return []
    weight = next(iter(layers.values())).weight
    devices = [weight.device] if weight.is_cuda else []
    with contextlib.ExitStack() as stack:
        # PyTorch counts versions of tensors only outside of inference mode. The state of the random numbers is
        # restored.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if parent.training:
            stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(with_forwards({layer: recorder(name, layer) for name, layer in layers.items()}))
        stack.enter_context(contextlib.suppress(Exception, _AllSeen))
        x = torch.zeros((*rows, weight.shape[1]), dtype=weight.dtype, device=weight.device)
        function(parent, x, **needed)
    return seen


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
