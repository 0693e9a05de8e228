"""A stand-in of torchvision, which SGLang imports for models with images: none fits a PyTorch without CUDA."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAMES = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional", ".ops")


class _StandIn(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__getattr__": lambda self, name: None, "BICUBIC": None})


def stand_in() -> None:
    """Put it where nothing is installed, after transformers has looked for the real one."""
    from transformers.utils import import_utils

    if not import_utils.is_torchvision_available():
        for name in _NAMES:
            module = _StandIn(f"torchvision{name}")
            module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
            sys.modules.setdefault(module.__name__, module)
