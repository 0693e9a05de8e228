"""A warp of a machine that runs PTX: registers of 32 lanes, and what its instructions do by themselves.

Lanes have counters of their own; of those that may go on the ones that are furthest behind do, so that they meet again
where branches join.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from ptx_text import Program

LANES = 32
_ALL = np.ones(LANES, np.bool_)
# Addresses of shared memory: a place in a CTA's, and above it the CTA's rank in its cluster.
OFFSET, RANK = 0xFFFFFF, 24
_WIDTHS = {"%rd": np.uint64, "%rs": np.uint16, "%r": np.uint32, "%p": np.bool_, "P1": np.bool_, "p": np.bool_}
_SIGNED = {"s32": np.int32, "s64": np.int64, "u32": np.uint32, "u64": np.uint64, "b32": np.uint32, "b64": np.uint64}
_SIGNED |= {
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "u16": np.uint16,
    "b16": np.uint16,
    "s16": np.int16,
    "f16": np.float16,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


# Whether a warp that cannot go on now can.
Until = Callable[[], bool]


@cache
def kind_of(register: str) -> type:
    """How wide a register is, by its name."""
    return next(kind for prefix, kind in _WIDTHS.items() if register.startswith(prefix))


def to_bf16(values: Any) -> Any:
    """float32 to the nearest bfloat16, ties to even, as its 16 bits."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def from_bf16(bits: Any) -> Any:
    """bfloat16 in 16 bits, as float32."""
    return (np.asarray(bits, np.uint32) << np.uint32(16)).view(np.float32)


class Warp:
    """Number `number` of the CTA of that rank in its cluster.

    `special`: what %tid.x and its like are, and symbols' addresses.
    """

    def __init__(self, program: Program, special: dict[str, Any], rank: int, number: int, registers: int) -> None:
        self.program, self.special = program, special
        self.rank, self.number, self.thread_registers = rank, number, registers
        self.registers: dict[str, Any] = {}
        # Where all lanes are; None where that is each lane's own.
        self.together: int | None = 0
        self.at = np.zeros(LANES, np.int64)
        # Registers that are being loaded from tensor memory, which nothing may read.
        self.on_the_way: set[str] = set()
        # Registers that wgmma writes, which nothing may touch; and those that were touched since the last wgmma.fence.
        self.being_summed: set[str] = set()
        self.accessed: set[str] = set()
        # Places in shared memory that were written since the last fence for the copy engine.
        self.unfenced: list[Any] = []
        self.done = False

    def step(self, other: Callable[[Warp, str, tuple[str, ...], Any], Until | None]) -> Until | None:
        """One instruction, or what the warp has to wait for; `other` does those that concern more than this warp."""
        place, lanes = self.together, _ALL
        if place is None:
            place = int(self.at[self.program.order[self.at].argmin()])
            lanes = self.at == place
        one = self.program.instructions[place]
        active = lanes
        if one.guard:
            said = self.registers[one.guard]
            active = lanes & (~said if one.unless else said)
        if one.opcode.startswith("bra"):
            self._go(lanes, place + 1)
            self._go(active, self.program.labels[one.operands[0]])
            return None
        if one.opcode == "ret":
            assert active.all(), "lanes end apart"
            self.done = True
            return None
        if (active is _ALL or active.any()) and not self.compute(one.opcode, one.operands, active):
            until = other(self, one.opcode, one.operands, active)
            if until:
                return until
        self._go(lanes, place + 1)
        return None

    def _go(self, lanes: Any, place: int) -> None:
        if lanes is _ALL:
            self.together = place
            return
        if self.together is not None:
            self.at[:] = self.together
        self.at[lanes] = place
        self.together = place if (self.at == place).all() else None

    # Operands.

    def get(self, operand: str, kind: type) -> Any:
        """32 lanes of an operand, as bits of its register seen as `kind`."""
        if operand in self.registers or operand in self.being_summed:
            assert operand not in self.on_the_way, "read before it was loaded"
            assert operand not in self.being_summed, "read before it was summed"
            self.accessed.add(operand)
            value = self.registers[operand]
            return value if kind is np.bool_ else _seen(value, kind)
        if operand in self.special:
            return np.broadcast_to(np.asarray(self.special[operand]).astype(kind), LANES)
        return _literal(operand, kind)

    def put(self, register: str, value: Any, active: Any) -> None:
        """Where lanes are active; the value's bits."""
        if register == "_":
            return
        assert register not in self.being_summed, "written while it is summed"
        self.accessed.add(register)
        kind = kind_of(register)
        new = np.asarray(value)
        new = new if kind is np.bool_ else _seen(new, kind)
        if active is _ALL or active.all():
            # Nothing writes to a register's array: it may be another's, too.
            self.registers[register] = new if new.shape == (LANES,) else np.full(LANES, new)
        else:
            old = self.registers.setdefault(register, np.zeros(LANES, kind))
            self.registers[register] = np.where(active, new, old)

    def address(self, operand: str) -> Any:
        """Of [register+offset], 64 bits."""
        found = re.fullmatch(r"\[([^\]+]+)(?:\+(-?\d+))?\]", operand)
        assert found, operand
        base = self.get(found[1], np.uint64 if found[1].startswith("%rd") else np.uint32)
        return (base.astype(np.int64) + int(found[2] or 0)).astype(np.uint64)

    def uniform(self, operand: str, active: Any, kind: type = np.uint64) -> int:
        """A value that all active lanes share."""
        values = self.get(operand, kind)[active]
        assert (values == values[0]).all(), operand
        return int(values[0])

    # Instructions of one lane each.

    def compute(self, opcode: str, given: tuple[str, ...], active: Any) -> bool:
        """Whether it is an instruction of these, and then it is done."""
        name, suffixes, last, kind = _parts(opcode)
        if name == "setp":
            told = _COMPARE[suffixes[0]](self.get(given[1], kind), self.get(given[2], kind))
            self.put(given[0], told, active)
        elif last == "pred":
            self._predicate(name, given, active)
        elif name == "mov":
            self._move(given, active, kind)
        elif name == "selp":
            picked = self.get(given[3], np.bool_)
            self.put(given[0], np.where(picked, self.get(given[1], kind), self.get(given[2], kind)), active)
        elif name == "cvt":
            self._convert(suffixes, given, active)
        elif name == "mul" and suffixes[0] in ("wide", "hi"):
            wide = self.get(given[1], kind).astype(np.int64) * self.get(given[2], kind).astype(np.int64)
            self.put(given[0], wide if suffixes[0] == "wide" else (wide >> 32).astype(np.int32), active)
        elif opcode == "add.rn.f32.bf16":
            self.put(given[0], from_bf16(self.get(given[1], np.uint16)) + self.get(given[2], np.float32), active)
        elif opcode == "add.rn.f32.f16":
            self.put(
                given[0], self.get(given[1], np.float16).astype(np.float32) + self.get(given[2], np.float32), active
            )
        elif name in _ARITHMETIC and last in _SIGNED:
            with np.errstate(all="ignore"):
                self.put(given[0], _ARITHMETIC[name](*(self.get(each, kind) for each in given[1:])), active)
        elif name == "cvta":
            self.put(given[0], self.get(given[1], np.uint64), active)
        elif name == "shfl":
            assert active.all()
            self.put(given[0], self.get(given[1], np.uint32)[int(given[2])], active)
        elif name == "elect":
            assert active.all(), "a part of a warp elects"
            _, chosen = given[0].split("|")
            self.put(chosen, np.arange(LANES) == 0, active)
        elif opcode == "tcgen05.wait::ld.sync.aligned":
            assert active.all()
            self.on_the_way.clear()
        elif name == "prefetch" or opcode in _NOTHING:
            pass
        elif opcode == "bar.warp.sync":
            assert active.all(), "a part of a warp waits for itself"
        else:
            return False
        return True

    def _predicate(self, name: str, given: tuple[str, ...], active: Any) -> None:
        values = [
            self.get(each, np.bool_) if each[0] in "%P" else np.full(LANES, bool(int(each))) for each in given[1:]
        ]
        do = {"mov": lambda x: x, "not": np.logical_not, "and": np.logical_and, "or": np.logical_or}
        do["xor"] = np.logical_xor
        self.put(given[0], do[name](*values), active)

    def _move(self, given: tuple[str, ...], active: Any, kind: type) -> None:
        """Between registers, and of halves to a whole or back; the compiler moves also what is still being loaded."""
        early = self.on_the_way & {each.strip() for operand in given[1:] for each in operand.strip("{}").split(",")}
        self.on_the_way -= early
        if given[0].startswith("{"):
            low, high = (each.strip() for each in given[0][1:-1].split(","))
            halves = np.ascontiguousarray(self.get(given[1], kind)).view(f"u{np.dtype(kind).itemsize // 2}")
            self.put(low, halves[0::2], active)
            self.put(high, halves[1::2], active)
        elif given[1].startswith("{"):
            size = np.dtype(kind).itemsize // 2
            parts = [self.get(each.strip(), np.dtype(f"u{size}").type) for each in given[1][1:-1].split(",")]
            self.put(given[0], np.stack(parts, axis=1).reshape(-1).view(kind), active)
        else:
            self.put(given[0], self.get(given[1], kind), active)
        if early:
            self.on_the_way |= early | {each.strip() for each in given[0].strip("{}").split(",")}

    def _convert(self, suffixes: list[str], given: tuple[str, ...], active: Any) -> None:
        to, of = [each for each in suffixes if each not in ("rn", "rzi", "ftz")]
        if to in ("bf16x2", "f16x2"):
            high, low = (self.get(each, np.float32) for each in given[1:])
            self.put(
                given[0], _half(to, low).astype(np.uint32) | _half(to, high).astype(np.uint32) << np.uint32(16), active
            )
        elif of == "f32":
            self.put(given[0], _half(to, self.get(given[1], np.float32)), active)
        elif to == "f32":
            bits = self.get(given[1], np.uint16)
            self.put(given[0], from_bf16(bits) if of == "bf16" else bits.view(np.float16).astype(np.float32), active)
        else:
            self.put(given[0], self.get(given[1], _SIGNED[of]).astype(_SIGNED[to]), active)


@cache
def _literal(operand: str, kind: type) -> Any:
    """A number that is written out, in 32 lanes that nothing writes to."""
    if operand.startswith(("0f", "0F")):
        return np.full(LANES, np.uint32(int(operand[2:], 16))).view(np.float32).astype(kind)
    value = int(operand, 0)
    bits = np.dtype(kind).itemsize * 8
    if np.issubdtype(kind, np.floating):
        return np.full(LANES, value, kind)
    return np.full(LANES, np.array(value & (1 << bits) - 1, f"u{bits // 8}").view(kind))


@cache
def _parts(opcode: str) -> tuple[str, list[str], str, type]:
    """Name, suffixes, the last of them, and the type that it means."""
    name, *suffixes = opcode.split(".")
    last = suffixes[-1] if suffixes else ""
    return name, suffixes, last, _SIGNED.get(last, np.uint32)


def _half(to: str, values: Any) -> Any:
    if to.startswith("bf16"):
        return to_bf16(values)
    return values.astype(np.float16).view(np.uint16)


def _seen(value: Any, kind: type) -> Any:
    """The same bits as `kind`; of fewer or more bits, as a number."""
    if value.dtype == kind:
        return value
    if value.dtype.itemsize == np.dtype(kind).itemsize:
        return np.ascontiguousarray(value).view(kind)
    return value.astype(kind)


def _divided(x: Any, y: Any) -> Any:
    whole = np.abs(x.astype(np.int64)) // np.maximum(1, np.abs(y.astype(np.int64)))
    return (whole * np.sign(x.astype(np.int64)) * np.sign(y.astype(np.int64))).astype(x.dtype)


_NOTHING = {
    "griddepcontrol.launch_dependents",
    "tcgen05.fence::after_thread_sync",
    "tcgen05.fence::before_thread_sync",
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned",
    "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned",
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "mad": lambda x, y, z: x * y + z,
    "fma": lambda x, y, z: x * y + z,
    "div": _divided,
    "rem": lambda x, y: x - _divided(x, y) * y,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "neg": np.negative,
    "abs": np.abs,
    "shl": lambda x, y: (x.astype(np.uint64) << y.astype(np.uint64)).astype(x.dtype),
    "shr": lambda x, y: x >> y.astype(x.dtype),
}
