"""A machine for tests that runs the PTX of kernels for sm_90 and sm_100, a cluster at a time.

What is asynchronous on a GPU takes a time here that chance decides: copies (each destination by itself), products (in
order), commits, stores. So do the turns of warps. What a barrier must not see (more arrivals than it has, a phase that
nobody ends), and whatever reaches a CTA that has left, is an error; so is a machine in which nobody can go on. What it
knows of the hardware is what the PTX ISA says; it shares no line with the kernel or with its compiler.

Lanes of a warp that are at one place go on together: a fence of lanes of one warp that is missing does not show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import numpy as np
from ptx_barriers import BARRIERS
from ptx_copies import COPIES
from ptx_cta import Barrier, Cta
from ptx_memory import MEMORY
from ptx_tcgen05 import TCGEN05
from ptx_tensor import TensorMap
from ptx_text import Program
from ptx_warp import LANES, OFFSET, RANK, Until, Warp
from ptx_wgmma import WGMMA, Products

# Where dynamic shared memory begins; a CTA's own addresses have its rank above.
_DYNAMIC = 1024
# Share of the warps that are slow, and of their turns that they take while anything else may happen.
_SLOW, _PACE = 0.3, 0.001
# What may be lazy: it then comes only when no warp can go on, or the slow ones alone. One of them may be the last: it
# comes when nothing else can happen.
_KINDS = ("copy", "signal", "store", "product")
_DOES: dict[str, Callable[..., Until | None]] = MEMORY | BARRIERS | COPIES | TCGEN05 | WGMMA


@cache
def _what(opcode: str) -> Callable[..., Until | None]:
    """What an instruction does beyond its warp, or what it waits for."""
    for prefix, do in _DOES.items():
        if opcode.startswith(prefix):
            return do
    raise AssertionError(f"unknown PTX: {opcode}")


class Machine:
    """One cluster of `cluster` CTAs of a grid of `programs`; `memory` is arrays of bytes by their address.

    `registers` are what a launch gives to each thread, `shared_bytes` to each CTA.
    """

    def __init__(
        self,
        program: Program,
        arguments: list[Any],
        *,
        cluster: int,
        first: int,
        programs: int,
        threads: int,
        registers: int,
        shared_bytes: int,
        memory: dict[int, Any],
        random: Random,
    ) -> None:
        self.random, self.memory = random, memory
        self.maps: dict[int, TensorMap] = {}
        self.values: dict[str, int] = {}
        for number, (name, value) in enumerate(zip(program.parameters, arguments, strict=True)):
            self.values[name] = value if isinstance(value, int) else 1 << 40 | number
            if not isinstance(value, int):
                self.maps[self.values[name]] = value
        self.ctas = [Cta(_DYNAMIC + shared_bytes) for _ in range(cluster)]
        # What comes in any order; and by who made them (a CTA, or a warp) the products and commits that come in theirs.
        self.events: list[tuple[str, Callable[[], None]]] = []
        self.products: defaultdict[int | Warp, list[Callable[[], None]]] = defaultdict(list)
        self.lazy = {kind for kind in _KINDS if random.random() < 0.5}
        self.last = {random.choice((*_KINDS, ""))}
        self.newest_first, self.laziest = random.random() < 0.5, random.random() < 0.5
        # Arrivals at others' barriers, by who made them.
        self.unseen: dict[Callable[[], None], Warp] = {}
        # Of each warp: groups of stores, and of products.
        self.stores: dict[Warp, list[list[list[bool]]]] = {}
        self.wgmma: dict[Warp, Products] = {}
        self.cluster_met: set[Warp] = set()
        self.cluster_rounds = 0
        self.cluster_round_of: dict[Warp, int] = {}
        # Those that have come to a named barrier and not gone on.
        self.waiting: set[Warp] = set()
        self.warps: list[Warp] = []
        for rank, cta in enumerate(self.ctas):
            for number in range(threads // LANES):
                special: dict[str, Any] = {
                    "%tid.x": np.arange(LANES) + LANES * number,
                    "%laneid": np.arange(LANES),
                    "%ctaid.x": first + rank,
                    "%nctaid.x": programs,
                    "__dynamic_shmem__0": rank << RANK | _DYNAMIC,
                    **self.values,
                }
                warp = Warp(program, special, rank, number, registers)
                cta.warps.append(warp)
                self.warps.append(warp)
                self.stores[warp], self.wgmma[warp] = [[]], Products()

    def run(self, most_turns: int = 200_000) -> None:
        """To the end of all warps, and of all that they began."""
        warps, stuck = list(self.warps), dict[Warp, Until]()
        # Some are slow, so that what they should be waited for is not there by itself.
        slow = {warp for warp in warps if self.random.random() < self.random.choice((0, _SLOW))}
        for _ in range(most_turns):
            for warp in [warp for warp, until in stuck.items() if until()]:
                del stuck[warp]
            ready = [warp for warp in warps if warp not in stuck]
            quick = [warp for warp in ready if warp not in slow or self.random.random() < _PACE]
            before = ready if self.laziest else quick
            events, orders = self._due(self.last | self.lazy if before else self.last)
            if not (before or events or orders):
                events, orders = self._due(set())
            quick = quick if quick or events or orders else ready
            if not quick and not events and not orders:
                assert not warps, "nobody can go on"
                assert all(cta.tensor_memory.taken == 0 for cta in self.ctas), "tensor memory is still taken"
                return
            pick = self.random.randrange(len(quick) + len(events) + len(orders)) - len(quick)
            if pick < 0:
                warp = quick[pick]
                if until := self._turn(warp):
                    stuck[warp] = until
                if warp.done:
                    warps.remove(warp)
            elif pick < len(events):
                event = events[-1 if self.newest_first else pick]
                self.events.remove(event)
                event[1]()
            else:
                orders[pick - len(events)].pop(0)()
        raise AssertionError("no end")

    def _due(self, held: set[str]) -> tuple[list[tuple[str, Callable[[], None]]], list[list[Callable[[], None]]]]:
        """Events, and orders of products, but for those of the kinds that are held."""
        events = [one for one in self.events if one[0] not in held]
        return events, [] if "product" in held else [order for order in self.products.values() if order]

    def _turn(self, warp: Warp) -> Until | None:
        """Some instructions of a warp; what it waits for then, if it does."""
        for _ in range(self.random.choice((1, 10, 200))):
            if warp.done:
                break
            if until := warp.step(self._other):
                return until
        return None

    def _other(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
        return _what(opcode)(self, warp, opcode, given, active)

    def cta_of(self, warp: Warp) -> Cta:
        """The one that a warp is of."""
        return self.ctas[warp.rank]

    def barrier(self, address: int) -> Barrier:
        """The one at an address of any CTA of the cluster."""
        cta = self.ctas[address >> RANK]
        assert not cta.left, "a barrier of a CTA that has left"
        return cta.barriers[address & OFFSET]

    def shared_barrier(self, address: int) -> Barrier:
        """The same, for a copy, or for another CTA."""
        barrier = self.barrier(address)
        assert barrier.made_by is None, "a barrier that was not fenced"
        return barrier

    def signal(self, address: int, arrivals: int, more_bytes: int) -> Callable[[], None]:
        """What comes to a barrier later, from another CTA or of products."""
        return lambda: self.shared_barrier(address).change(arrivals, more_bytes)
