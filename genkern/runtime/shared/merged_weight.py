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
    `weight` and `bias` are None once a parameter has been given other memory or was replaced: `holds` finds it out.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear]) -> None:
        """Raises what torch.cat does where there is no memory for it; nothing is changed then."""
        with torch.inference_mode(False), torch.no_grad():
            weights = [layer.weight for layer in layers]
            biases = filter_none(*(layer.bias for layer in layers))
            weight = torch.cat([each.detach() for each in weights])
            bias = torch.cat([each.detach() for each in biases]) if biases else None
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

    def undo(self) -> None:
        """Give each parameter that still lies here memory of its own, with what it holds now."""
        for _, _, parameter, address in self._parts:
            if parameter.data_ptr() == address:
                parameter.data = parameter.data.clone()
        self.weight = self.bias = None
        self._parts = []


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
