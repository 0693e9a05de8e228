"""Ranks: which of several processes that compute one model together this one is, and what the first one tells all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's number among `size`; `meet` says whether they can tell each other something."""

    number: int = 0
    size: int = 1
    meet: bool = True

    @property
    def alone(self) -> bool:
        return self.size == 1


def ranks(environ: Mapping[str, str]) -> Ranks:
    """As torch.distributed has it once it is initialised, before that as the launcher says (RANK and WORLD_SIZE)."""
    if (distributed := _distributed()) is not None:
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    number, size = (environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not number.isdigit():
        return Ranks()
    # Of how many is not said: of several, then.
    count = int(size) if size.isdigit() else 2
    return Ranks(int(number), count, meet=count == 1)


def of_first(value: T) -> T:
    """What the first rank gives; every rank must come here, at the same point of its program."""
    distributed = _distributed()
    if distributed is None or distributed.get_world_size() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def _distributed() -> Any:
    """torch.distributed, where the program has initialised it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
