"""Merged: the weights of several layers, adjacent in one buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from genkern.runtime.merged_layers.shared_inputs import filter_none

# Tensors over memory that parameters own, by address. They do not keep the memory alive.
_seen_as_one: dict[tuple[object, ...], Any] = {}
_MOST_SEEN = 2**16


class MergedWeight:
    """The layers' weights [N, K] as one weight [sum of N, K], and their biases as one.

    The parameters remain the same objects. Each gets a part of one buffer as a storage of its own, so that saving a
    parameter saves only its part. Nothing is stored twice, and values that are written into a parameter
    (load_state_dict, an optimiser) are in the merged weight, too. Parameters stay in the buffer for good, since graphs
    may read them.

    rows: N of each layer.
    weight, bias: the merged tensors, which own no memory; None once `holds` has found that a parameter was moved or
        replaced. The buffer is freed with the last parameter that has a part of it.
    moved: True if the parameters had to be moved into the buffer.
    bytes: size of the weights.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear]) -> None:
        """Raise torch.cat's error if memory is exhausted; then nothing has changed."""
        weights, biases = _parameters(layers)
        self.rows = [int(each.shape[0]) for each in weights]
        self._parts: list[tuple[Any, str, Any, int]] = []
        self.moved = as_one(weights) is None
        self.weight: Any = self._together(layers, "weight", weights)
        self.bias: Any = self._together(layers, "bias", biases) if biases else None
        self.bytes = self.weight.numel() * self.weight.element_size()

    def _together(self, layers: Sequence[torch.nn.Linear], name: str, parameters: list[Any]) -> Any:
        """Return the parameters as one tensor, moving them into one buffer if they are not adjacent."""
        if as_one(parameters) is None:
            with torch.inference_mode(False), torch.no_grad():
                whole = torch.cat([each.detach() for each in parameters])
                for parameter, part in zip(parameters, whole.split(self.rows), strict=True):
                    # The new storage keeps the whole buffer alive, but covers only its own part.
                    parameter.data = torch.from_dlpack(part)
        for layer, parameter in zip(layers, parameters, strict=True):
            self._parts.append((layer._parameters, name, parameter, parameter.data_ptr()))
        return as_one(parameters)

    def holds(self) -> bool:
        """Return True if the parameters are still in the buffer."""
        if self.weight is None:
            return False
        for owned, name, parameter, address in self._parts:
            if owned.get(name) is not parameter or parameter.data_ptr() != address:
                self.weight = self.bias = None
                return False
        return True


def can_merge(layers: Sequence[torch.nn.Linear]) -> bool:
    """Return True if each parameter fills a storage of its own.

    A parameter in a larger storage, such as a flat buffer, must stay there.
    """
    return all(
        each.untyped_storage().nbytes() == each.numel() * each.element_size()
        for parameters in _parameters(layers)
        for each in parameters
    )


def _parameters(layers: Sequence[torch.nn.Linear]) -> tuple[list[Any], list[Any]]:
    """Return the layers' weights and their biases."""
    return [layer.weight for layer in layers], filter_none(*(layer.bias for layer in layers))


def as_one(tensors: Sequence[Any]) -> Any:
    """Return tensors [N, ...] of one type that are adjacent in memory as one tensor; None if they are not adjacent.

    The result owns no memory: it is valid while all of the tensors exist.
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
    """GPU memory in the form in which PyTorch imports it (CUDA array interface, version 3)."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}


def _memory(address: int, count: int, device: torch.device) -> Any:
    """Return `count` bytes from an address as a tensor that does not own them."""
    if device.type == "cuda":
        return torch.as_tensor(_OnGpu(address, count), device=device)
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=torch.uint8)
