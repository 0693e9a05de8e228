"""wgmma on tests/gluon_machine.py's shared memory: products read it as late as `wgmma.wait_group` allows."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gluon_machine import FIRST_ADDRESS, Agent, Machine
from gluon_memory import Allocation
from numpy.typing import NDArray


@dataclass(frozen=True)
class ByGroup:
    """A number of which each warpgroup has one of its own."""

    values: tuple[int, ...]

    def _with(self, operate: Callable[[int, int], int], other: Any) -> ByGroup:
        return ByGroup(tuple(operate(value, of_group(other, group)) for group, value in enumerate(self.values)))

    def __add__(self, other: Any) -> ByGroup:
        return self._with(operator.add, other)

    __radd__ = __add__

    def __and__(self, other: Any) -> ByGroup:
        return self._with(operator.and_, other)

    def __or__(self, other: Any) -> ByGroup:
        return self._with(operator.or_, other)

    def __rshift__(self, other: Any) -> ByGroup:
        return self._with(operator.rshift, other)


def of_group(number: Any, group: int) -> int:
    """What this warpgroup has of it."""
    return int(number.values[group] if isinstance(number, ByGroup) else number)


def by_group(values: NDArray[Any], groups: int) -> Any:
    """The number that these are, or those that they are in so many warpgroups, each with a part of its own."""
    parts = values.reshape(groups, -1)
    assert (parts == parts[:, :1]).all(), "a number that is not the same in all threads"
    numbers = tuple(parts[:, 0].tolist())
    return numbers[0] if len(set(numbers)) == 1 else ByGroup(numbers)


@dataclass(eq=False)
class _Registers:
    """What they hold, but for so many products that are not done."""

    held: NDArray[Any]
    pending: int = 0


class Tensor:
    """Values in registers, whose products must be waited for before anyone looks."""

    def __init__(self, values: Any, warps: int = 0) -> None:
        self.kept_in = _Registers(np.asarray(values))
        self.warps = warps
        self._left = False

    @property
    def held(self) -> NDArray[Any]:
        return self.kept_in.held

    @property
    def values(self) -> NDArray[Any]:
        assert not self._left, "what registers held before products are done, or before a text changed them"
        assert self.kept_in.pending == 0, "an accumulator is used before its products are done"
        return self.held

    def left(self) -> Any:
        """What a text leaves in these registers; nobody may look at what was there before."""
        after = type(self)(self.held, self.warps)
        after.kept_in, self._left = self.kept_in, True
        return after

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.shape

    @property
    def registers(self) -> int:
        """Elements that each thread holds."""
        return self.held.size // (32 * self.warps)

    def element(self, number: int, threads: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row and column of what each of these threads holds as this one of its elements, as wgmma leaves them."""
        return _element(number, self.warps, int(threads[0]), len(threads))


@functools.lru_cache(maxsize=16_384)
def _element(number: int, warps: int, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    threads = np.arange(first, first + count)
    half, within = divmod(number, 4)
    warp, lane = threads // 32, threads % 32
    rows = (half * warps + warp) * 16 + within // 2 * 8 + lane // 4
    return rows, lane % 4 * 2 + within % 2


@functools.lru_cache(maxsize=1024)
def _numbers(registers: str) -> tuple[int, ...]:
    return tuple(int(part.strip(" $")) for part in registers.strip("{}").split(","))


@dataclass(frozen=True)
class _Product:
    """64 rows times `width` columns, 32 bytes deep, added to `accs` at the operands `registers` of one warpgroup.

    Without `more` it replaces what they hold.
    `kinds` are the types of rows and columns, `turned` which of them run along themselves in memory, not along K.
    """

    registers: tuple[int, ...]
    rows: tuple[Allocation, int]
    columns: tuple[Allocation, int]
    turned: tuple[bool, bool]
    accs: Sequence[Tensor]
    group: int
    kinds: tuple[str, str]
    more: bool

    @functools.cached_property
    def chunks(self) -> list[tuple[Tensor, int]]:
        """Of each 8 columns the tensor, and the first of the 64 rows in it that the registers belong to."""
        each = self.accs[0].registers
        found = []
        for first in range(0, len(self.registers), 4):
            number = self.registers[first]
            assert self.registers[first : first + 4] == tuple(range(number, number + 4)), "registers out of order"
            assert number % 4 == 0, "registers out of order"
            acc = self.accs[number // each]
            found.append((acc, number % each // 4 * 16 * acc.warps + self.group * 64))
        return found

    def finish(self) -> None:
        width = 2 * len(self.registers)
        rows = _matrix(*self.rows, 64, self.kinds[0], self.turned[0])
        columns = _matrix(*self.columns, width, self.kinds[1], self.turned[1])
        before = np.zeros((64, width))
        if self.more:
            before = np.concatenate([acc.held[first : first + 64] for acc, first in self.chunks], axis=1)
        keeps_few_bits = set(self.kinds) <= {"e4m3", "e5m2"}
        sums = few_bit_sums(before, rows, columns) if keeps_few_bits else before + rows @ columns.T
        for number, (acc, first) in enumerate(self.chunks):
            acc.held[first : first + 64] = sums[:, 8 * number : 8 * number + 8]
            acc.kept_in.pending -= 1


# Bits that sm_90 keeps of sums of fp8 products (genkern/gemm/gpus.yaml, fp8_sum_bits).
_FP8_SUM_BITS = 14


def few_bit_sums(before: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[Any]:
    """before [64, N] + rows [64, 32] @ columns [N, 32].T: all of an element's terms are cut to so many bits below the
    largest one's first, and so is their sum.
    """
    exact = before + rows @ columns.T
    most = np.abs(before) + np.abs(rows) @ np.abs(columns).T
    if most.max() < 1 << (_FP8_SUM_BITS - 1) and not (rows % 1).any() and not (columns % 1).any():
        return exact
    # An element's terms are in the first dimension, along which NumPy is fast.
    terms = np.concatenate([before[None], rows.T[:, :, None] * columns.T[:, None]])
    unit = _unit(np.maximum(terms.max(0), -terms.min(0)))
    terms /= unit
    sums = np.trunc(terms, out=terms).sum(0) * unit
    unit = _unit(sums)
    return np.trunc(sums / unit) * unit


def _unit(largest: NDArray[Any]) -> NDArray[Any]:
    """What the last of so many bits of each of these counts."""
    return np.ldexp(1.0, np.frexp(largest)[1] - _FP8_SUM_BITS)


@dataclass(frozen=True)
class _Group:
    """What one wgmma.commit_group ends; `accesses` are the bits of what each of the four warps reads.

    `before` is what any of the warps knew to be over when it began.
    """

    products: list[_Product]
    accesses: list[int]
    before: int


# From 64 rows or columns of a turned operand to the next: what a K-block of 64 lines of 128 bytes takes.
_TURNED_BLOCK = 64 * 128


def _matrix(allocation: Allocation, start: int, rows: int, kind: str, turned: bool) -> NDArray[Any]:
    """[rows, 16 or 32] in float64, from rows of 128 bytes: the 32 bytes from `start` on, which are of this PTX type.

    Turned, from 16 lines of 128 bytes for each 64 rows.
    """
    if turned:
        starts = range(start, start + -(-rows // 64) * _TURNED_BLOCK, _TURNED_BLOCK)
        lines = [decoded(allocation.bytes[first : first + 16 * 128], kind).reshape(16, 64) for first in starts]
        return np.concatenate(lines, axis=1)[:, :rows].T
    block, within = divmod(start, 1024)
    lines = allocation.bytes.reshape(-1, 128)[block * 8 : block * 8 + rows, within : within + 32]
    return decoded(np.ascontiguousarray(lines), kind)


# By how much e4m3's bits in the place of float16's are too small: their exponents are biased by 7 and by 15.
_E4M3_SCALE = 256


def encoded(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Numbers that the type has exactly, as memory holds them: fp8 as bytes."""
    if kind == "e5m2":
        return (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    if kind == "e4m3":
        bits = (values / _E4M3_SCALE).astype(np.float16).view(np.uint16)
        return (bits >> 8 & 0x80 | bits >> 7 & 0x7F).astype(np.uint8)
    return values.astype({"f16": np.float16, "s8": np.int8}[kind])


def decoded(data: NDArray[np.uint8], kind: str) -> NDArray[np.float64]:
    """What `encoded` was given, of its bytes side by side."""
    if kind in ("e4m3", "e5m2"):
        return _numbers_of(kind)[data]
    return data.view({"f16": np.float16, "s8": np.int8}[kind]).astype(np.float64)


@functools.lru_cache
def _numbers_of(kind: str) -> NDArray[np.float64]:
    """What each byte is in a type of fp8."""
    wide = np.arange(256, dtype=np.uint16)
    if kind == "e5m2":
        return (wide << 8).view(np.float16).astype(np.float64)
    return ((wide & 0x80) << 8 | (wide & 0x7F) << 7).view(np.float16).astype(np.float64) * _E4M3_SCALE


def _started(
    machine: Machine, descriptor: int, access: int, rows: int, known: int, turned: bool
) -> tuple[Allocation, int]:
    """Where a matrix descriptor points, after a look at the rest of it."""
    assert descriptor >> 62 == 1, "a descriptor that is not swizzled over 128 bytes"
    assert descriptor >> 32 & 0x3FFFFFFF == 64, "a descriptor whose blocks of 8 rows are not 1024 bytes apart"
    # The second stride is not looked at along K, nor for the 64 rows of one block.
    strides = (_TURNED_BLOCK // 16, 1) if turned and rows <= 64 else (_TURNED_BLOCK // 16 if turned else 1,)
    assert descriptor >> 14 & 0x3FFFF in [stride << 2 for stride in strides], "more than an address and its stride"
    address = (descriptor & 0x3FFF) << 4
    assert address >= FIRST_ADDRESS, "an address outside the ring"
    allocation, start = machine.at(machine.mapped(address, machine.rank))
    if turned:
        assert start % 1024 == 0, "a descriptor that begins between two blocks of 8 lines"
        for first in range(start, start + -(-rows // 64) * _TURNED_BLOCK, _TURNED_BLOCK):
            allocation.reads(access, first, 16 * 128, known)
        return allocation, start
    assert start % 1024 <= 96, "a descriptor that begins between two rows"
    allocation.reads(access, start // 1024 * 1024, rows * 128, known)
    return allocation, start


# Types of rows and columns, K of an instruction, and type of the sums.
_FORMS = {
    ("f16", "f16", "16", "f32"),
    ("s8", "s8", "32", "s32"),
    *((rows, columns, "32", "f32") for rows in ("e4m3", "e5m2") for columns in ("e4m3", "e5m2")),
}


class Products:
    """What one warpgroup does with wgmma in one text: `accs` are the tensors of the text's first operands."""

    def __init__(self, machine: Machine, group: int, accs: Sequence[Tensor]) -> None:
        self.machine, self.group, self.accs = machine, group, accs
        self.agent: Agent = machine.running
        self.warps = range(group * 4, group * 4 + 4)
        self.fenced = False

    def fence(self) -> None:
        self.fenced = True

    def commit(self) -> None:
        self.agent.products[self.group].append(self.agent.open_group[self.group] or _Group([], [], 0))
        self.agent.open_group[self.group] = None

    def wait(self, left: int) -> None:
        """Finish the products of all groups but the last few."""
        while len(self.agent.products[self.group]) > left:
            group = self.agent.products[self.group].pop(0)
            for product in group.products:
                product.finish()
            # It is the warpgroup's: who has waited for it knows that all four warps have come to it, and have read.
            for warp in self.warps:
                self.agent.known[warp] |= functools.reduce(operator.or_, group.accesses, group.before)

    def multiply(
        self, name: str, registers: str, rows: int, columns: int, turned: tuple[bool, bool], more: bool
    ) -> None:
        match = re.fullmatch(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+)", name)
        assert match, f"unknown PTX: {name}"
        kinds = match[4], match[5]
        assert (*kinds, match[2], match[3]) in _FORMS, f"unknown PTX: {name}"
        assert kinds[0] != "s8" or int(match[1]) <= 32 or int(match[1]) % 16 == 0, "a width that int8 has not"
        assert self.fenced, "products without a wgmma.fence before them"
        numbers = _numbers(registers)
        width = int(match[1])
        assert len(numbers) == width // 2
        if self.agent.open_group[self.group] is None:
            bits = [self.machine.cluster.new_bit() for _ in self.warps]
            before = functools.reduce(operator.or_, (self.agent.known[warp] for warp in self.warps))
            self.agent.open_group[self.group] = _Group([], bits, before)
        products, accesses = self.agent.open_group[self.group].products, self.agent.open_group[self.group].accesses
        known, access = self.agent.all_know(self.warps), functools.reduce(operator.or_, accesses)
        first = _started(self.machine, rows, access, 64, known, turned[0])
        second = _started(self.machine, columns, access, width, known, turned[1])
        product = _Product(numbers, first, second, turned, self.accs, self.group, kinds, more)
        products.append(product)
        for acc, _ in product.chunks:
            acc.kept_in.pending += 1
