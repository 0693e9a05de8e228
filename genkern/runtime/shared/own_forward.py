"""A module's own forward in the place of its class's, and taken away again."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

# Of the forwards that modules are given.
_MARK = "_is_genkerns"


def has_own_forward(module: torch.nn.Module) -> bool:
    """Whether somebody gave this module another forward than that of its class."""
    # Of a patched module, pickle makes one that has the class's as its own.
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(module).forward


def is_given(module: torch.nn.Module) -> bool:
    """Whether the forward of its own that a module has is genkern's."""
    return hasattr(vars(module).get("forward"), _MARK)


def give_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Give the module this forward, and return what takes it away, if it is still there then.

    nn.DataParallel's replicas, which have the module's own attributes, get one with their own weights.
    """

    def replicated(replica: torch.nn.Module) -> None:
        if getattr(vars(replica).get("forward"), "__func__", None) is forward:
            replica.forward = MethodType(forward, replica)

    setattr(forward, _MARK, True)
    # A method, so that a copy of the module has its own, with its own weights.
    takes = _given(module, "forward", forward), when_replicated(module, replicated)

    def take_both() -> None:
        for take in takes:
            take()

    return take_both


def when_replicated(module: torch.nn.Module, replicated: Callable[[torch.nn.Module], None]) -> Callable[[], None]:
    """Call `replicated` with each of the module's replicas by nn.DataParallel, before it has weights; returns what
    ends that.
    """

    # Its name is what pickle looks up in the module.
    def _replicate_for_data_parallel(module: Any) -> Any:
        replica = type(module)._replicate_for_data_parallel(module)
        vars(replica).pop(_replicate_for_data_parallel.__name__, None)
        replicated(replica)
        return replica

    return _given(module, _replicate_for_data_parallel.__name__, _replicate_for_data_parallel)


def _given(module: torch.nn.Module, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    setattr(module, name, MethodType(function, module))

    def take() -> None:
        # Somebody may have put another around this one since.
        if getattr(vars(module).get(name), "__func__", None) is function:
            delattr(module, name)

    return take
