"""The copy engine of ptx_machine: boxes of matrices to shared memory, of one CTA or of several, and from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from ptx_tensor import TensorMap
from ptx_text import operands_of
from ptx_warp import OFFSET, RANK, Until, Warp

if TYPE_CHECKING:
    from ptx_machine import Machine


def copy(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    """To shared memory, of one CTA or of those of a mask; bytes count at the barrier of each, or of its pair."""
    assert active.sum() == 1, "one thread issues a copy"
    target, barrier = (int(warp.address(given[place])[active][0]) for place in (0, 2))
    box, column, row = _box(machine, warp, given[1], active)
    rank = target >> RANK
    ranks = [rank]
    if "multicast" in opcode:
        mask = warp.uniform(given[3], active)
        ranks = [each for each in range(16) if mask >> each & 1]
    for each in ranks:
        at = each if "cta_group::2" not in opcode else each & ~1 | barrier >> RANK & 1
        if "multicast" not in opcode:
            at = barrier >> RANK
            assert at == each or ("cta_group::2" in opcode and at ^ each == 1)
        at = at << RANK | barrier & OFFSET
        machine.events.append(("copy", _landing(machine, box, column, row, each, target & OFFSET, at)))


def _landing(
    machine: Machine, box: TensorMap, column: int, row: int, rank: int, place: int, barrier: int
) -> Callable[[], None]:
    def land() -> None:
        of_matrix, of_box = box.window(column, row)
        raw = np.zeros((box.box_rows, box.box_bytes), np.uint8)
        raw[of_box] = box.raw[of_matrix]
        assert not machine.ctas[rank].left, "a copy to a CTA that has left"
        machine.ctas[rank].shared[box.places(place)] = raw
        machine.shared_barrier(barrier).change(0, -raw.size)

    return land


def _box(machine: Machine, warp: Warp, operand: str, active: Any) -> tuple[TensorMap, int, int]:
    name, places = operands_of(operand[1:-1])
    column, row = (warp.uniform(each, active, np.int32) for each in operands_of(places[1:-1]))
    return machine.maps[warp.uniform(name, active)], column, row


def store(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    """From shared memory; what it reads it reads later. A warp issues it as one (the DSL's word for it)."""
    assert active.all()
    box, column, row = _box(machine, warp, given[0], active)
    place, cta, done = int(warp.address(given[1])[0]) & OFFSET, machine.cta_of(warp), [False]
    assert not cta.unfenced[box.places(place)].any(), "the copy engine does not see what was written"

    def leave() -> None:
        assert not cta.left, "a store of a CTA that has left"
        of_matrix, of_box = box.window(column, row)
        box.raw[of_matrix] = cta.shared[box.places(place)][of_box]
        done[0] = True

    machine.stores[warp][-1].append(done)
    machine.events.append(("store", leave))


def commit_stores(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    machine.stores[warp].append([])


def wait_stores(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
    groups = machine.stores[warp][:-1]
    awaited = [done for group in groups[: len(groups) - int(given[0])] for done in group if not done[0]]
    return (lambda: all(done[0] for done in awaited)) if awaited else None


COPIES = {
    "cp.async.bulk.tensor.2d.shared": copy,
    "cp.async.bulk.tensor.2d.global": store,
    "cp.async.bulk.commit_group": commit_stores,
    "cp.async.bulk.wait_group.read": wait_stores,
}
