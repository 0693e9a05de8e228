"""What a CTA of a machine for tests has (ptx_machine): shared and tensor memory, barriers, registers, warps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptx_tensor import TensorMemory
from ptx_warp import LANES, Warp

# What tx-count stays below (PTX ISA 9.0, contents of the mbarrier object).
_MOST_BYTES = 1 << 20


@dataclass
class Barrier:
    """An mbarrier: arrivals and bytes that its phase still waits for.

    `made_by`: the warp that made it and has not fenced it, so that neither other CTAs nor copies know of it.
    """

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0
    made_by: Warp | None = None

    def change(self, arrivals: int, more_bytes: int) -> None:
        """By so many arrivals, and bytes that are expected (or, less than 0, have come)."""
        self.pending -= arrivals
        self.bytes += more_bytes
        assert self.pending >= 0, "more arrivals than a phase has"
        assert abs(self.bytes) < _MOST_BYTES, "more bytes than a barrier counts"
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count


@dataclass
class Named:
    """A named barrier: the warps that have come to its round, and how many threads that takes."""

    met: set[Warp] = field(default_factory=set)
    threads: int = 0
    rounds: int = 0

    def reach(self, warp: Warp, threads: int) -> None:
        assert threads % LANES == 0
        assert warp not in self.met, "a warp comes twice to one round"
        assert not self.met or threads == self.threads, "warps do not agree on how many come"
        self.threads = threads
        self.met.add(warp)
        if LANES * len(self.met) == threads:
            self.met.clear()
            self.rounds += 1


@dataclass
class Cta:
    """What a CTA has, of `shared_bytes` of shared memory.

    `spare_registers`: what its warps have given back, of those that a launch gives it.
    """

    shared_bytes: int
    tensor_memory: TensorMemory = field(default_factory=TensorMemory)
    barriers: dict[int, Barrier] = field(default_factory=dict)
    named: dict[int, Named] = field(default_factory=dict)
    warps: list[Warp] = field(default_factory=list)
    spare_registers: int = 0
    shared: Any = field(init=False)
    # Which warp (its number and one) has written a byte that the copy engine does not see yet.
    unfenced: Any = field(init=False)

    def __post_init__(self) -> None:
        self.shared = np.full(self.shared_bytes, 0xFF, np.uint8)
        self.unfenced = np.zeros(self.shared_bytes, np.uint8)

    @property
    def left(self) -> bool:
        return all(warp.done for warp in self.warps)

    def write(self, places: Any, values: Any, warp: Warp) -> None:
        """Bytes of `values` [rows, any] to `places` [rows, bytes], by a warp's own instruction."""
        self.shared[places] = values.view(np.uint8)
        self.unfenced[places] = warp.number + 1
        warp.unfenced.append(places.reshape(-1))

    def fence(self, warp: Warp) -> None:
        """The copy engine sees what the warp has written."""
        if warp.unfenced:
            places = np.concatenate(warp.unfenced)
            self.unfenced[places[self.unfenced[places] == warp.number + 1]] = 0
            warp.unfenced.clear()
