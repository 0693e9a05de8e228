"""How warps of ptx_machine wait for one another: mbarriers, named barriers, and a cluster's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ptx_cta import Barrier, Named
from ptx_warp import LANES, OFFSET, RANK, Until, Warp

if TYPE_CHECKING:
    from ptx_machine import Machine


def initialize(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    place = int(warp.address(given[0])[active][0]) & OFFSET
    count = warp.uniform(given[1], active)
    machine.cta_of(warp).barriers[place] = Barrier(count, count, made_by=warp)


def fence_initialized(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    for barrier in machine.cta_of(warp).barriers.values():
        if barrier.made_by is warp:
            barrier.made_by = None


def arrive(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    """Each lane at its barrier, of whatever CTA; with the bytes that it expects. Other CTAs learn of it later."""
    more = warp.uniform(given[-1], active)
    for address in warp.address(given[-2])[active]:
        change = (more, 0) if ".expect_tx" not in opcode else (int(opcode.startswith("mbarrier.arrive")), more)
        if int(address) >> RANK == warp.rank:
            machine.barrier(int(address)).change(*change)
        else:
            signal = machine.signal(int(address), *change)
            machine.events.append(("signal", signal))
            machine.unseen[signal] = warp


def try_wait(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
    addresses = warp.address(given[1])[active]
    assert (addresses == addresses[0]).all(), "lanes wait at several barriers"
    barrier, parity = machine.barrier(int(addresses[0])), warp.uniform(given[2], active)
    if barrier.phase & 1 == parity:
        return lambda: barrier.phase & 1 != parity
    warp.put(given[0], np.ones(LANES, np.bool_), active)
    return None


def mapa(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    place, rank = (warp.get(each, np.uint32) for each in given[1:])
    warp.put(given[0], (place & np.uint32(OFFSET)) | rank << np.uint32(RANK), active)


def _named(machine: Machine, warp: Warp, given: tuple[str, ...], active: Any) -> Named:
    return machine.cta_of(warp).named.setdefault(warp.uniform(given[0], active), Named())


def _reach(machine: Machine, warp: Warp, given: tuple[str, ...], active: Any) -> None:
    """This warp is at a named barrier, of so many threads, or of all."""
    assert active.all(), "a part of a warp at a barrier"
    threads = warp.uniform(given[1], active) if len(given) > 1 else LANES * len(machine.cta_of(warp).warps)
    _named(machine, warp, given, active).reach(warp, threads)


def named_sync(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
    if warp in machine.waiting:
        machine.waiting.remove(warp)
        return None
    named = _named(machine, warp, given, active)
    before = named.rounds
    _reach(machine, warp, given, active)
    if named.rounds != before:
        return None
    machine.waiting.add(warp)
    return lambda: named.rounds != before


def named_arrive(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    _reach(machine, warp, given, active)


def cluster_arrive(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.all()
    if "relaxed" not in opcode:
        # It releases: what the warp has signalled to others is there before anyone passes this barrier.
        for event in [event for event in machine.events if machine.unseen.get(event[1]) is warp]:
            machine.events.remove(event)
            event[1]()
    machine.cluster_round_of[warp] = machine.cluster_rounds
    machine.cluster_met.add(warp)
    if len(machine.cluster_met) == len(machine.warps):
        machine.cluster_met.clear()
        machine.cluster_rounds += 1


def cluster_wait(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
    before = machine.cluster_round_of[warp]
    return (lambda: machine.cluster_rounds != before) if machine.cluster_rounds == before else None


BARRIERS = {
    "mbarrier.init": initialize,
    "fence.mbarrier_init": fence_initialized,
    "mbarrier.arrive": arrive,
    "mbarrier.expect_tx": arrive,
    "mbarrier.try_wait.parity": try_wait,
    "mapa": mapa,
    "bar.sync": named_sync,
    "bar.arrive": named_arrive,
    "barrier.cluster.arrive": cluster_arrive,
    "barrier.cluster.wait": cluster_wait,
}
