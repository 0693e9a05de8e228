"""Products of sm_90 in ptx_machine: each warp of a warpgroup has 16 of their 64 rows, with sums in its registers.

A warp's products take place in their order, any time between its instruction and its wait; until then nothing may
touch the registers. Parts of a product end one by one, but nobody's wait for it is over before all four have: it is the
warpgroup's, and CUTLASS frees what it has read when one of the warps has waited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from ptx_tensor import Operand
from ptx_text import operands_of
from ptx_warp import LANES, Until, Warp

if TYPE_CHECKING:
    from ptx_machine import Machine

# Of the descriptors that sm_90 reads.
_VERSION = 0
_ROWS = 16
_TYPES = {"bf16": "bf16", "f16": "fp16", "e4m3": "fp8e4m3fn", "e5m2": "fp8e5m2"}
_SHAPE = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.(\w+)\.(\w+)")


@dataclass
class Pending:
    """A product that may still be to come, and the registers that its sums are in."""

    registers: tuple[str, ...]
    done: bool = False


@dataclass
class Products:
    """Of a warp: committed groups and the one that is open; how many products it has `made`, and of how many its waits
    are over; sums [registers, lanes] that are being made.
    """

    groups: list[list[Pending]] = field(default_factory=lambda: [[]])
    made: int = 0
    ended: int = 0
    sums: dict[tuple[str, ...], Any] = field(default_factory=dict)
    fenced: bool = False


def multiply(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.all()
    found = _SHAPE.fullmatch(opcode)
    assert found, opcode
    n, of_k, types = int(found[1]), int(found[2]), (_TYPES[found[3]], _TYPES[found[4]])
    size = 32 // of_k
    registers = operands_of(given[0][1:-1])
    assert len(registers) == n // 2
    assert given[4:6] == ("1", "1"), "negated"
    k_major = tuple(each == "0" for each in given[6:8]) or (True, True)
    a, b = (Operand.of(warp.uniform(each, active), _VERSION) for each in given[1:3])
    keep = bool(warp.uniform(given[3], active, np.bool_))
    products = machine.wgmma[warp]
    assert products.fenced, "no wgmma.fence"
    assert warp.accessed.isdisjoint(registers), "no wgmma.fence behind what used the registers"
    if registers not in products.sums:
        assert warp.being_summed.isdisjoint(registers), "sums of another shape are on their way there"
        unknown = np.full(LANES, np.nan, np.float32)
        before = [warp.registers[each].view(np.float32) if keep else unknown for each in registers]
        products.sums[registers] = np.stack(before)
        warp.being_summed.update(registers)
    sums, pending, shared = products.sums[registers], Pending(registers), machine.cta_of(warp).shared

    def add() -> None:
        rows = a.read(shared, _ROWS, of_k, size, k_major[0], types[0], first=warp.number % 4 * _ROWS)
        added = (rows @ b.read(shared, n, of_k, size, k_major[1], types[1]).T).reshape(2, 8, n // 8, 4, 2)
        # Of each 8 columns a thread has two neighbours, in its row and in the one 8 below.
        added = added.transpose(2, 0, 4, 1, 3).reshape(n // 2, LANES)
        sums[...] = sums + added if keep else added
        pending.done = True
        products.made += 1

    products.groups[-1].append(pending)
    machine.products[warp].append(add)


def fence(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.all()
    machine.wgmma[warp].fenced = True
    warp.accessed.clear()


def commit(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.all()
    machine.wgmma[warp].groups.append([])


def wait(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
    """For all groups but so many of the last; their registers are then the warp's again."""
    assert active.all()
    products = machine.wgmma[warp]
    ended = max(0, len(products.groups) - 1 - int(given[0]))
    awaited = products.ended + sum(len(group) for group in products.groups[:ended])
    beside = [each for each in machine.warps if each.rank == warp.rank and each.number // 4 == warp.number // 4]
    group_of = [machine.wgmma[each] for each in beside]
    if any(other.made < awaited for other in group_of):
        return lambda: all(other.made >= awaited for other in group_of)
    products.ended = awaited
    del products.groups[:ended]
    still = {each.registers for group in products.groups for each in group}
    for registers in products.sums.keys() - still:
        for register, values in zip(registers, products.sums.pop(registers).view(np.uint32), strict=True):
            warp.being_summed.discard(register)
            warp.registers[register] = values
    return None


def set_registers(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> Until | None:
    """Those of each thread: some go back to the CTA, or more are taken once it has them."""
    assert active.all()
    cta, wanted = machine.cta_of(warp), int(given[0])
    assert 24 <= wanted <= 256
    assert wanted % 8 == 0
    more = (wanted - warp.thread_registers) * LANES
    assert more <= 0 if ".dec." in opcode else more >= 0
    if more > cta.spare_registers:
        return lambda: more <= cta.spare_registers
    cta.spare_registers -= more
    warp.thread_registers = wanted
    return None


WGMMA = {
    "wgmma.mma_async": multiply,
    "wgmma.fence": fence,
    "wgmma.commit_group": commit,
    "wgmma.wait_group": wait,
    "setmaxnreg": set_registers,
}
