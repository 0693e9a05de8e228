"""Merged: the weights of several layers, one behind the other in one memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from genkern.runtime.shared.siblings import filter_none

# Tensors over memory that parameters own, by where it is: they keep none of it.
_seen_as_one: dict[tuple[object, ...], Any] = {}
_MOST_SEEN = 2**16


class Merged:
    """The layers' weights [N, K] as one [sum of N, K], and their biases as one, while their parameters lie so.

    The parameters stay the objects that they are. Each is given a part of one memory, as a storage of its own, so that
    whoever saves it finds no other in there; nothing is stored twice, and what is written into one (load_state_dict, an
    optimiser) is in the merged weight. They stay there for good, since graphs may read them. `weight` and `bias` own
    nothing: they are None once a parameter has been given other memory or was replaced, which `holds` finds out, and
    the memory goes with the last parameter that has a part. `moved` says whether they lay elsewhere before.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear]) -> None:
        """Raises what torch.cat does where there is no memory for it; nothing is changed then."""
        weights, biases = _parameters(layers)
        self.rows = [int(each.shape[0]) for each in weights]
        self._parts: list[tuple[Any, str, Any, int]] = []
        self.moved = as_one(weights) is None
        self.weight: Any = self._together(layers, "weight", weights)
        self.bias: Any = self._together(layers, "bias", biases) if biases else None
        self.bytes = self.weight.numel() * self.weight.element_size()

    def _together(self, layers: Sequence[torch.nn.Linear], name: str, parameters: list[Any]) -> Any:
        """The parameters as one, which are moved where they do not lie so."""
        if as_one(parameters) is None:
            with torch.inference_mode(False), torch.no_grad():
                whole = torch.cat([each.detach() for each in parameters])
                for parameter, part in zip(parameters, whole.split(self.rows), strict=True):
                    # Keeps all of the memory, and shows its own part alone.
                    parameter.data = torch.from_dlpack(part)
        for layer, parameter in zip(layers, parameters, strict=True):
            self._parts.append((layer._parameters, name, parameter, parameter.data_ptr()))
        return as_one(parameters)

    def holds(self) -> bool:
        """Whether the parameters still lie in it."""
        if self.weight is None:
            return False
        for owned, name, parameter, address in self._parts:
            if owned.get(name) is not parameter or parameter.data_ptr() != address:
                self.weight = self.bias = None
                return False
        return True


def can_merge(layers: Sequence[torch.nn.Linear]) -> bool:
    """Whether each parameter's memory is its own: a part of a larger one, of a flat buffer for example, belongs to
    whoever made that.
    """
    return all(
        each.untyped_storage().nbytes() == each.numel() * each.element_size()
        for parameters in _parameters(layers)
        for each in parameters
    )


def _parameters(layers: Sequence[torch.nn.Linear]) -> tuple[list[Any], list[Any]]:
    """The layers' weights, and their biases."""
    return [layer.weight for layer in layers], filter_none(*(layer.bias for layer in layers))


def as_one(tensors: Sequence[Any]) -> Any:
    """The tensors [N, ...] of one type, which lie one behind the other in memory, as one tensor; None where they do
    not. It owns nothing: it may be read while all of them are there.
    """
    first = tensors[0]
    address = end = first.data_ptr()
    for each in tensors:
        if each.data_ptr() != end or not each.is_contiguous():
            return None
        end += each.numel() * each.element_size()
    rows = sum(int(each.shape[0]) for each in tensors)
    place = address, end, rows, first.dtype, first.device
    if (found := _seen_as_one.get(place)) is None:
        if len(_seen_as_one) >= _MOST_SEEN:
            _seen_as_one.clear()
        with torch.inference_mode(False), torch.no_grad():
            found = _memory(address, end - address, first.device).view(first.dtype).view(rows, *first.shape[1:])
        _seen_as_one[place] = found
    return found


class _OnGpu:
    """Memory of a GPU as PyTorch takes it from others (CUDA array interface, version 3)."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}


def _memory(address: int, count: int, device: torch.device) -> Any:
    """So many bytes from an address on, as a tensor that does not own them."""
    if device.type == "cuda":
        return torch.as_tensor(_OnGpu(address, count), device=device)
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=torch.uint8)
