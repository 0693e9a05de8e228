"""How much memory PyTorch's tensors take at a time on the CPU, counted by their storages: an allocator's stand-in."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CountedMemory(TorchDispatchMode):
    """`peak_bytes` of all storages that were made within it and still were there."""

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        # One object of Python for a storage as long as it lives: it is weakly referenced by that.
        number = storage._cdata
        if number in self._known:
            return
        self._known.add(number)
        size = storage.nbytes()
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        weakref.finalize(storage, self._gone, number, size)

    def _gone(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.now_bytes -= size
