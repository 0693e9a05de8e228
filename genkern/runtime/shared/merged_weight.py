"""Merged: the weights of several layers, one behind the other in one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from genkern.runtime.shared.siblings import filter_none


class Merged:
    """The layers' weights [N, K] as one [sum of N, K], and their biases as one, while their parameters lie there.

    The parameters stay the objects that they are, and are given this memory for their own: so nothing is stored twice,
    what is written into one (load_state_dict, an optimiser) is in the merged weight, and saving writes each for itself.
    They stay there for good, since graphs may read them. `weight` and `bias` are None once a parameter has been given
    other memory or was replaced: `holds` finds it out. `moved` says whether they lay elsewhere before.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear]) -> None:
        """Raises what torch.cat does where there is no memory for it; nothing is changed then."""
        with torch.inference_mode(False), torch.no_grad():
            weights, biases = _parameters(layers)
            weight = as_one(weights)
            self.moved = weight is None
            weight = torch.cat([each.detach() for each in weights]) if weight is None else weight
            bias = as_one(biases) if biases else None
            bias = torch.cat([each.detach() for each in biases]) if biases and bias is None else bias
        self.weight: Any = weight
        self.bias: Any = bias
        self.rows = [int(each.shape[0]) for each in weights]
        self.bytes = weight.numel() * weight.element_size()
        self._parts: list[tuple[Any, str, Any, int]] = []
        for name, whole, parameters in (("weight", weight, weights), ("bias", bias, biases)):
            if whole is None:
                continue
            parts = whole.split(self.rows)
            for layer, parameter, part in zip(layers, parameters, parts, strict=True):
                if parameter.data_ptr() != part.data_ptr():
                    parameter.data = part
                self._parts.append((layer._parameters, name, parameter, part.data_ptr()))

    def holds(self) -> bool:
        """Whether the parameters still lie in it."""
        if self.weight is None:
            return False
        for owned, name, parameter, address in self._parts:
            if owned.get(name) is not parameter or parameter.data_ptr() != address:
                # Nothing keeps the memory of parts that nobody has.
                self.weight = self.bias = None
                return False
        return True


def can_merge(layers: Sequence[torch.nn.Linear]) -> bool:
    """Whether each parameter's memory is its own, or all together are the whole of one: a part of a larger one, of a
    flat buffer for example, belongs to whoever made that.
    """
    return all(not each or _is_whole(each) or all(_is_whole([one]) for one in each) for each in _parameters(layers))


def _parameters(layers: Sequence[torch.nn.Linear]) -> tuple[list[Any], list[Any]]:
    """The layers' weights, and their biases."""
    return [layer.weight for layer in layers], filter_none(*(layer.bias for layer in layers))


def _is_whole(tensors: Sequence[Any]) -> bool:
    whole = as_one(tensors)
    return whole is not None and whole.numel() * whole.element_size() == whole.untyped_storage().nbytes()


def as_one(tensors: Sequence[Any]) -> Any:
    """The tensors [N, ...], which lie one behind the other in one memory, as one tensor; None where they do not."""
    first = tensors[0]
    address = first.data_ptr()
    for each in tensors:
        if each.data_ptr() != address or not each.is_contiguous():
            return None
        address += each.numel() * each.element_size()
    rows = sum(int(each.shape[0]) for each in tensors)
    shape = (rows, *first.shape[1:])
    ends = (first.storage_offset() + rows * first.stride(0)) * first.element_size()
    if ends > first.untyped_storage().nbytes():
        return None
    return first.detach().as_strided(shape, first.stride())


def as_rows(x: Any) -> Any:
    """x [..., K], or a copy of it, row by row: a product is of one problem then, however x lies."""
    return x if x.dim() == 0 or x.stride(-1) == 1 else x.contiguous()
