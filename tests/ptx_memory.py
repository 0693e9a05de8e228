"""What instructions of ptx_machine do with parameters, shared and global memory at once: loads, stores, fences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ptx_text import operands_of
from ptx_warp import LANES, OFFSET, Warp

if TYPE_CHECKING:
    from ptx_machine import Machine


def load_parameter(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    warp.put(given[0], np.full(LANES, machine.values[given[1][1:-1]], np.uint64), active)


def _places(warp: Warp, operand: str) -> Any:
    """Of each lane's address in its CTA's shared memory."""
    return (warp.address(operand) & np.uint64(OFFSET)).astype(np.int64)


def load_shared(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    registers = operands_of(given[0][1:-1]) if given[0].startswith("{") else given[:1]
    # Of lanes that load nothing an address may be anything.
    first = np.where(active, _places(warp, given[1]), 0)
    assert not (first % (4 * len(registers))).any(), "off the bytes that are loaded at a time"
    for number, register in enumerate(registers):
        places = first[:, None] + 4 * number + np.arange(4)
        warp.put(register, machine.cta_of(warp).shared[places].view(np.uint32)[:, 0], active)


def store_shared(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    places = _places(warp, given[0])[active][:, None]
    size = int(opcode[-2:]) // 8
    for number, register in enumerate(operands_of(given[1][1:-1])):
        values = np.ascontiguousarray(warp.get(register, np.dtype(f"u{size}").type)[active])
        machine.cta_of(warp).write(places + size * number + np.arange(size), values.reshape(-1, 1), warp)


def store_matrices(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    """8 rows of 16 bytes for each register, lanes 0 to 7 with the places of the first one's, and so on."""
    assert active.all()
    rows, registers = _places(warp, given[0]), operands_of(given[1][1:-1])
    assert f".x{len(registers)}." in opcode
    for number, register in enumerate(registers):
        halves = np.ascontiguousarray(warp.get(register, np.uint32)).view(np.uint16).reshape(8, 8)
        matrix = np.ascontiguousarray(halves.T if ".trans." in opcode else halves)
        places = rows[8 * number : 8 * number + 8, None]
        assert not (places % 16).any(), "a row off 16 bytes"
        machine.cta_of(warp).write(places + np.arange(16), matrix, warp)


def fence(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    machine.cta_of(warp).fence(warp)


def _global(machine: Machine, warp: Warp, operand: str, size: int, active: Any) -> tuple[Any, Any]:
    """The array that the addresses of active lanes are in, and the places in it of their bytes, [lanes, size]."""
    addresses = warp.address(operand)[active]
    base = max(each for each in machine.memory if each <= int(addresses[0]))
    places = (addresses - np.uint64(base)).astype(np.int64)
    assert places.min() >= 0, "before an array"
    assert places.max() <= len(machine.memory[base]) - size, "beyond an array"
    assert not (places % size).any()
    return machine.memory[base], places[:, None] + np.arange(size)


def load_global(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    size = int(opcode[-2:]) // 8
    values = np.zeros(LANES, f"u{size}")
    array, places = _global(machine, warp, given[1], size, active)
    values[active] = array[places].view(values.dtype)[:, 0]
    warp.put(given[0], values, active)


def store_global(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    size = int(opcode[-2:]) // 8
    registers = operands_of(given[1][1:-1]) if given[1].startswith("{") else given[1:]
    array, places = _global(machine, warp, given[0], size * len(registers), active)
    values = np.stack([warp.get(register, np.dtype(f"u{size}").type)[active] for register in registers], axis=1)
    array[places] = values.view(np.uint8)


MEMORY = {
    "ld.param": load_parameter,
    "ld.shared": load_shared,
    "st.shared.v": store_shared,
    "stmatrix.sync.aligned.m8n8": store_matrices,
    "fence.proxy.async": fence,
    "ld.global": load_global,
    "st.global": store_global,
}
