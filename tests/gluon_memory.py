"""Shared memory as the kernels in Gluon see it: matrices that are copied, allocations, barriers, and who knows what.

Whether an access to shared memory is allowed does not hang on the order in which things happen to run here: what
touches memory must know that everything it could disturb, or that it needs, is finished. Barriers hand that on from
who arrives to who waits. Each copy, product, end of a phase and end of a wait is a bit, and what somebody knows to be
over is a number with the bits of all that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gluon_machine import Machine

LATE = "a wait that may come after the next phase"
# Rows are swizzled in blocks of 8, of 128 bytes each.
_BLOCK_BYTES = 1024
_IN_USE = "memory is overwritten while it is in use"
_EARLY = "memory is read before what it needs has arrived"


class Dtype:
    """An element type, as descriptors and buffers name it."""

    def __init__(self, dtype: Any) -> None:
        self.numpy = np.dtype(dtype)
        self.primitive_bitwidth = self.numpy.itemsize * 8


class Barrier:
    """An mbarrier: a phase is over when `count` have arrived and all expected bytes are there.

    `maker` is the thread that made it. `fenced`: what copies, or other programs, may see it. `shared`: all threads of
    the program may. `announced`: its maker has arrived at the cluster's barrier since. `new_bit` gives one that nobody
    has.
    """

    def __init__(self, count: int, maker: int, new_bit: Callable[[], int]) -> None:
        self.count, self.maker = count, maker
        self.fenced = self.shared = self.announced = False
        self.phases, self.arrivals, self.bytes = 0, 0, 0
        self.gathered = 0
        # Arrivals of this phase that were added to those it counts, and what those know that it counts anyway.
        self._added = self._counted = 0
        # What other programs have sent.
        self.sent = 0
        # By phase: the bit of its end, what a waiter knows then, and the waits that must be over before it ends.
        self._ends: list[int] = []
        self._handed_on: list[int] = []
        self._waits: dict[int, int] = {}
        self._new_bit = new_bit
        self._counts_bytes: bool | None = None

    def lets_through(self, parity: int) -> bool:
        """Whether a wait for the end of a phase of this parity is over: it is while the phase now has the other one."""
        return self.phases & 1 != parity

    def waited(self, parity: int, known: int, in_cluster: bool) -> int:
        """What somebody knows after a wait who knew `known` before.

        That says no more than that the next phase of this parity is over, counted from those whose ends are known: the
        barrier may be any number of rounds of two ahead. What other programs sent is seen by waits `in_cluster` only.
        """
        ended = next((n + 1 for n in reversed(range(self.phases)) if self._ends[n] & known), 0)
        over = ended + (ended & 1 == parity)
        assert self.phases <= over, LATE
        wait = self._new_bit()
        self._waits[over] = self._waits.get(over, 0) | wait
        if over > ended:
            known |= self._handed_on[ended] & (-1 if in_cluster else ~self.sent)
        return known | wait

    def update(self, arrivals: int, moved: int, known: int, *, of_copies: bool = False) -> None:
        """So many arrive, and expect `moved` bytes more, or bring them where it is negative, one by one.

        `of_copies`: threads arrive when what they copied is there, which barriers of bytes may wait for as well.
        """
        if 0 < self.bytes < -moved:
            rest = moved + self.bytes
            self.update(0, -self.bytes, known)
            self.update(0, rest, known)
            return
        if self._counts_bytes is None and not of_copies:
            self._counts_bytes = moved != 0
        assert of_copies or self._counts_bytes == (moved != 0), "a barrier of the other kind"
        self.bytes += moved
        self.arrivals += arrivals
        assert self.arrivals <= self.count, "an arrival too many"
        self.gathered |= known
        self._counted |= known
        if self.arrivals == self.count and self.bytes == 0:
            # Who waits for the phase before, and comes after this one's end, is not let through.
            assert not self._waits.get(self.phases, 0) & ~self.gathered, LATE
            assert not self._added & ~self._counted, "a phase that may end before an arrival is added to it"
            self._ends.append(self._new_bit())
            self._handed_on.append(self.gathered | self._ends[-1])
            self.phases, self.arrivals, self.gathered = self.phases + 1, 0, 0
            self._added = self._counted = 0

    def add_arrival(self, known: int) -> int:
        """One arrival more is counted in this phase, and comes of itself when what somebody copied is there.

        Returns the bit of its being counted, of which one of the other arrivals must know: else they may all have come
        before.
        """
        self.gathered |= known
        self._added |= (bit := self._new_bit())
        return bit

    def has_added(self, known: int) -> bool:
        """Whether somebody who knows this knows of arrivals that were added to this phase."""
        return self._added & known != 0


# Memory that pointers point to, by the upper part of its address.
_POINTED_TO: list[NDArray[Any]] = []
_MEMORY_BIT = 40
# Bytes that the copy engine takes at least, from multiples of as many.
_LINE = 16


def global_address(memory: NDArray[Any], offset: int) -> int:
    """Where this element of flat memory is, as a number."""
    known = next((number for number, each in enumerate(_POINTED_TO) if each is memory), len(_POINTED_TO))
    if known == len(_POINTED_TO):
        _POINTED_TO.append(memory)
    return (known + 1 << _MEMORY_BIT) + offset * memory.itemsize


def is_global(number: object) -> bool:
    """Whether a number is an address of such memory."""
    return isinstance(number, int) and number >= 1 << _MEMORY_BIT


def at_global(address: int, count: int = 1) -> NDArray[Any]:
    """So many elements from there on."""
    memory = _POINTED_TO[(address >> _MEMORY_BIT) - 1]
    element, rest = divmod(address & (1 << _MEMORY_BIT) - 1, memory.itemsize)
    assert rest == 0, "an address between two elements"
    assert element + count <= len(memory), "an offset beyond the memory"
    return memory[element : element + count]


def lines_at(address: int, size: int) -> NDArray[np.uint8]:
    """So many bytes, of whole lines of 16: behind the memory, the last has what no one wrote."""
    memory = _POINTED_TO[(address >> _MEMORY_BIT) - 1].view(np.uint8)
    start = address & (1 << _MEMORY_BIT) - 1
    beyond = start + size - len(memory)
    assert beyond < _LINE, "an offset beyond the memory"
    return np.concatenate([memory[start : start + size], np.full(max(beyond, 0), 0xFF, np.uint8)])


class Descriptor:
    """A matrix that the copy engine reads and writes in boxes; what lies outside is zero, or dropped.

    `read_once`: nobody reads it again soon, so copies of it are to leave L2 first.
    """

    def __init__(
        self, matrix: NDArray[Any], box: Sequence[int], writes: NDArray[Any] | None = None, read_once: bool = False
    ) -> None:
        self.matrix, self.box, self.writes, self.read_once = matrix, tuple(box), writes, read_once
        self.dtype = Dtype(matrix.dtype)
        row_bytes = self.box[1] * self.dtype.numpy.itemsize
        self.layout = next((width for width in (128, 64, 32) if row_bytes % width == 0), 0)

    @property
    def block_shape(self) -> list[int]:
        return list(self.box)

    def _part(self, matrix: NDArray[Any], corner: Sequence[int]) -> NDArray[Any]:
        assert min(corner) >= 0
        return matrix[corner[0] : corner[0] + self.box[0], corner[1] : corner[1] + self.box[1]]

    def load(self, corner: Sequence[int]) -> NDArray[Any]:
        tile = np.zeros(self.box, self.matrix.dtype)
        part = self._part(self.matrix, corner)
        tile[: part.shape[0], : part.shape[1]] = part
        return tile

    def store(self, corner: Sequence[int], tile: NDArray[Any]) -> None:
        part = self._part(self.matrix, corner)
        part[...] = tile[: part.shape[0], : part.shape[1]]
        if self.writes is not None:
            assert not self._part(self.writes, corner).any(), "an element of C is written twice"
            self._part(self.writes, corner)[...] = True


class Allocation:
    """One allocation of shared memory; nothing in it is a number before someone writes it.

    `by_address`: PTX has used it, of which the compiler knows nothing. `kept`: the compiler keeps it to the end.
    """

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine = machine
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.barriers: dict[int, Barrier] = {}
        # How many barriers there were, and their blocks.
        self._beside: tuple[int, set[int]] = 0, set()
        # By block: the bits of who wrote it last, and of who has read it since.
        self.written: dict[int, int] = {}
        # By block that is written in parts: the same of its numbers, by their places.
        self.parts: dict[int, dict[int, int]] = {}
        self.read: dict[int, int] = {}
        self.by_address = self.kept = False

    def reads(self, access: int, start: int, size: int, known: int) -> None:
        """`access` reads these bytes from now on, and is started by somebody who knows what `known` holds."""
        assert start + size <= self.bytes.size, "an address outside the ring"
        for block in range(start // _BLOCK_BYTES, -(-(start + size) // _BLOCK_BYTES)):
            if (parts := self.parts.get(block)) is None:
                assert self.written.get(block, 0) & known, _EARLY
            else:
                # Beside what was written in parts there may be what is no number, and nobody waits for that.
                numbers = range(
                    max(start, block * _BLOCK_BYTES) // 4, -(-min(start + size, (block + 1) * _BLOCK_BYTES) // 4)
                )
                assert all(parts[at] & known for at in numbers if at in parts), _EARLY
            self.read[block] = self.read.get(block, 0) | access

    def writes(self, access: int, start: int, data: NDArray[np.uint8], known: int) -> None:
        """`access` writes these bytes from now on."""
        end = start + data.size
        assert start % _BLOCK_BYTES == end % _BLOCK_BYTES == 0, "a write of parts of blocks"
        assert end <= self.bytes.size, "an address outside the ring"
        assert not any(start <= at < end for at in self.barriers), "barriers are overwritten"
        for block in range(start // _BLOCK_BYTES, end // _BLOCK_BYTES):
            before = [self.read.pop(block, 0), self.written.get(block, 0), *self.parts.pop(block, {}).values()]
            assert not any(bits & ~known for bits in before), _IN_USE
            self.written[block] = access
        self.bytes[start:end] = data

    def writes_numbers(self, access: int, start: int, data: NDArray[np.uint8], known: int) -> None:
        """`access` writes these numbers of 4 bytes, in one block or in several, from now on."""
        end = start + data.size
        assert start % 4 == end % 4 == 0, "a number between two"
        assert end <= self.bytes.size, "an address outside the ring"
        if self._beside[0] != len(self.barriers):
            self._beside = len(self.barriers), {place // _BLOCK_BYTES for place in self.barriers}
        for at in range(start // 4, end // 4):
            block = at * 4 // _BLOCK_BYTES
            assert block not in self._beside[1], "over barriers"
            parts = self.parts.setdefault(block, {})
            before = self.read.get(block, 0) | self.written.pop(block, 0) | parts.get(at, 0)
            assert not before & ~known, _IN_USE
            parts[at] = access
        self.bytes[start:end] = data

    @property
    def writers(self) -> list[int]:
        """The bits of who wrote what lies here."""
        return [*self.written.values(), *(bit for parts in self.parts.values() for bit in parts.values())]


@dataclass(frozen=True)
class View:
    """A part of an allocation, as an array of some type and shape."""

    allocation: Allocation
    dtype: Dtype
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def values(self) -> NDArray[Any]:
        part = self.allocation.bytes.view(self.dtype.numpy).reshape(self.shape)
        return part.transpose(self.order or range(len(self.shape)))

    def permute(self, order: tuple[int, ...]) -> View:
        return View(self.allocation, self.dtype, self.shape, order)

    def store(self, tensor: Any) -> None:
        self.allocation.machine.store(self, tensor.values)

    def load(self, layout: Any) -> Any:
        return self.allocation.machine.load(self)

    def _keep_alive(self) -> None:
        assert self.allocation.machine.parted, "memory that is kept only until the warps part"
        self.allocation.kept = True
