"""What a CTA of a machine for tests has (ptx_machine): shared and tensor memory, barriers, warps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptx_tensor import TensorMemory
from ptx_warp import Warp

SHARED_BYTES = 228 * 1024


@dataclass
class Barrier:
    """An mbarrier: arrivals and bytes that its phase still waits for."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def change(self, arrivals: int, more_bytes: int) -> None:
        """By so many arrivals, and bytes that are expected (or, less than 0, have come)."""
        self.pending -= arrivals
        self.bytes += more_bytes
        assert self.pending >= 0, "more arrivals than a phase has"
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count


@dataclass
class Cta:
    """What a CTA has. `left`: it has ended. `met`: threads at its barrier of all."""

    shared: Any = field(default_factory=lambda: np.full(SHARED_BYTES, 0xFF, np.uint8))
    tensor_memory: TensorMemory = field(default_factory=TensorMemory)
    barriers: dict[int, Barrier] = field(default_factory=dict)
    warps: list[Warp] = field(default_factory=list)
    met: set[int] = field(default_factory=set)
    rounds: int = 0
    # Which warp (its number and one) has written a byte that the copy engine does not see yet.
    unfenced: Any = field(default_factory=lambda: np.zeros(SHARED_BYTES, np.uint8))

    @property
    def left(self) -> bool:
        return all(warp.done for warp in self.warps)
