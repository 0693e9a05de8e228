"""Gives a module a forward of its own in place of its class's, and takes it away again."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

# An attribute of the forwards that genkern gives to modules.
_MARK = "_is_genkerns"


def has_own_forward(module: torch.nn.Module) -> bool:
    """Return True if the module has a forward other than its class's."""
    # pickle restores a patched module with its class's forward as an attribute of its own.
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(module).forward


def has_genkern_forward(module: torch.nn.Module) -> bool:
    """Return True if the module's own forward is genkern's."""
    return hasattr(vars(module).get("forward"), _MARK)


def give_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Give the module this forward. Return a function that takes it away, if it is still there.

    Replicas of nn.DataParallel, which copy the module's attributes, get the forward with their own weights.
    """

    def replicated(replica: torch.nn.Module) -> None:
        if getattr(vars(replica).get("forward"), "__func__", None) is forward:
            replica.forward = MethodType(forward, replica)

    setattr(forward, _MARK, True)
    # A bound method, so that a copy of the module gets one with its own weights.
    takes = _given(module, "forward", forward), when_replicated(module, replicated)

    def take_both() -> None:
        for take in takes:
            take()

    return take_both


def when_replicated(module: torch.nn.Module, replicated: Callable[[torch.nn.Module], None]) -> Callable[[], None]:
    """Call `replicated` with each replica that nn.DataParallel makes of the module, before it has weights.

    Return a function that ends that.
    """

    # pickle looks the function up in the module by this name.
    def _replicate_for_data_parallel(module: Any) -> Any:
        replica = type(module)._replicate_for_data_parallel(module)
        vars(replica).pop(_replicate_for_data_parallel.__name__, None)
        replicated(replica)
        return replica

    return _given(module, _replicate_for_data_parallel.__name__, _replicate_for_data_parallel)


def _given(module: torch.nn.Module, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    setattr(module, name, MethodType(function, module))

    def take() -> None:
        # Another function may have been put around this one since.
        if getattr(vars(module).get(name), "__func__", None) is function:
            delattr(module, name)

    return take
