"""A module's own forward in the place of its class's, and taken away again."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch


def has_own_forward(module: torch.nn.Module) -> bool:
    """Whether somebody gave this module another forward than that of its class."""
    # Of a patched module, pickle makes one that has the class's as its own.
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(module).forward


def give_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Give the module this forward, and return what takes it away, if it is still there then.

    nn.DataParallel's replicas, which have the module's own attributes, have their class's.
    """

    # The names of both are what pickle looks up in the module.
    def _replicate_for_data_parallel(module: Any) -> Any:
        replica = type(module)._replicate_for_data_parallel(module)
        take_from(replica)
        return replica

    given = {"forward": forward, "_replicate_for_data_parallel": _replicate_for_data_parallel}

    def take_from(module: Any) -> None:
        for name, function in given.items():
            # Somebody may have put another around this one since.
            if getattr(vars(module).get(name), "__func__", None) is function:
                delattr(module, name)

    for name, function in given.items():
        # Methods, so that a copy of the module has its own, with its own weights.
        setattr(module, name, MethodType(function, module))
    return lambda: take_from(module)
