"""Ranks: this process's number among processes that compute one model together, and a broadcast from the first one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's number among `size` processes. `meet` is True if they can communicate."""

    number: int = 0
    size: int = 1
    meet: bool = True

    @property
    def alone(self) -> bool:
        return self.size == 1


def ranks(environ: Mapping[str, str]) -> Ranks:
    """Return the rank from torch.distributed if it is initialised, else from the launcher's RANK and WORLD_SIZE."""
    if (distributed := _distributed()) is not None:
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    number, size = (environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not number.isdigit():
        return Ranks()
    # Without WORLD_SIZE, assume that there are several.
    count = int(size) if size.isdigit() else 2
    return Ranks(int(number), count, meet=count == 1)


def of_first(value: T) -> T:
    """Return the first rank's `value`. A collective operation: every rank must call it at the same point."""
    distributed = _distributed()
    if distributed is None or distributed.get_world_size() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def _distributed() -> Any:
    """Return torch.distributed if the program has initialised it; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
