"""SMs as the kernels in Gluon see them: shared memory, barriers, the copy engine, and partitions that take turns.

Whether an access to the operands in shared memory is allowed does not hang on the order in which things happen to run
here: each warpgroup has a set of the copies and products that it knows to be finished, which barriers hand on from who
arrives to who waits, and what touches memory must know that everything it could disturb, or that it needs, is
finished. A phase of a barrier tells a waiter no more than the phase that its own waits prove to be over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gluon_cluster import DEADLOCK, Cluster, Ended
from numpy.typing import NDArray

# Where the largest allocation begins: an SM keeps the first 1024 bytes to itself.
FIRST_ADDRESS = 1024
# What one program may have of an SM's shared memory.
SHARED_BYTES = 227 * 1024
# Rows are swizzled in blocks of 8, of 128 bytes each.
_BLOCK_BYTES = 1024


class Dtype:
    """An element type, as descriptors and buffers name it."""

    def __init__(self, dtype: Any) -> None:
        self.numpy = np.dtype(dtype)
        self.primitive_bitwidth = self.numpy.itemsize * 8


class Access:
    """A copy or a product: something that goes on by itself, until it is finished.

    `twin` is a copy of another program of the cluster that writes the same bytes to the same place.
    """

    twin: Access | None = None


@dataclass(eq=False)
class Agent:
    """A partition of the program, or the kernel before it parts: what each of its warpgroups knows to be finished."""

    known: list[set[Access]]
    machine: Machine
    seen: dict[Barrier, int] = field(default_factory=dict)
    # By warpgroup, oldest first: groups of products that are in flight, and products that are in no group yet.
    products: list[list[list[Any]]] = field(default_factory=list)
    open_group: list[list[Any]] = field(default_factory=list)
    stores: list[tuple[Descriptor, Sequence[int], View]] = field(default_factory=list)
    unfenced: list[Allocation] = field(default_factory=list)
    # Whether some thread's stores to memory may come after what another thread does next.
    unordered: bool = False
    # How often it has met all others of its cluster.
    met: int = 0
    ready: Callable[[], bool] = lambda: True
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: bool = False

    def __post_init__(self) -> None:
        self.products = [[] for _ in self.known]
        self.open_group = [[] for _ in self.known]

    def check_end(self) -> None:
        assert not any(self.products + self.open_group), "products that nobody waits for"
        assert not self.stores, "a store that nobody waits for"


class Barrier:
    """An mbarrier: a phase is over when `count` have arrived and all expected bytes are there."""

    def __init__(self, count: int) -> None:
        self.count, self.phases, self.arrivals, self.bytes = count, 0, 0, 0
        self.gathered: set[Access] = set()
        # What a waiter knows to be finished, by phase.
        self.handed_on: list[set[Access]] = []

    def update(self, arrivals: int, moved: int, known: set[Access]) -> None:
        self.bytes += moved
        for arrived in [1] * arrivals or [0]:
            self.arrivals += arrived
            self.gathered |= known
            if self.arrivals == self.count and self.bytes == 0:
                self.handed_on.append(self.gathered)
                self.phases, self.arrivals, self.gathered = self.phases + 1, 0, set()

    def acquire(self, agent: Agent, parity: int) -> None:
        """What the end of the phase tells, of which parity and the agent's earlier waits say that it is over."""
        before = agent.seen.get(self, 0)
        over = before + (before & 1 == parity)
        agent.seen[self] = over
        for finished in self.handed_on[before:over]:
            for known in agent.known:
                known |= finished


class Descriptor:
    """A matrix that the copy engine reads and writes in boxes; what lies outside is zero, or dropped."""

    def __init__(self, matrix: NDArray[Any], box: Sequence[int], writes: NDArray[Any] | None = None) -> None:
        self.matrix, self.box, self.writes = matrix, tuple(box), writes
        self.dtype = Dtype(matrix.dtype)
        row_bytes = self.box[1] * self.dtype.numpy.itemsize
        self.layout = next((width for width in (128, 64, 32) if row_bytes % width == 0), 0)

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
    """One allocation of shared memory; nothing in it is a number before someone writes it."""

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine = machine
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.barriers: dict[int, Barrier] = {}
        self.written: dict[int, Access] = {}
        self.read: dict[int, list[Access]] = {}

    def reads(self, access: Access, start: int, size: int, known: set[Access]) -> None:
        """`access` reads these bytes from now on, and is started by somebody who knows what `known` holds."""
        for block in range(start // _BLOCK_BYTES, -(-(start + size) // _BLOCK_BYTES)):
            copy = self.written.get(block)
            both = {copy, copy.twin} - {None} if copy is not None else {None}
            assert both <= known, "a buffer is read before its copy has arrived"
            self.read.setdefault(block, []).append(access)

    def writes(self, access: Access, start: int, data: NDArray[np.uint8], known: set[Access]) -> None:
        """`access` writes these bytes, which may be those that another copy is just writing there."""
        size = data.size
        assert start % _BLOCK_BYTES == 0
        assert size % _BLOCK_BYTES == 0
        assert not any(start <= at < start + size for at in self.barriers), "barriers are overwritten"
        for block in range(start // _BLOCK_BYTES, (start + size) // _BLOCK_BYTES):
            at = slice(block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES)
            new = data[at.start - start : at.stop - start]
            before = {*self.read.pop(block, [])}
            if (last := self.written.get(block)) is not None and not np.array_equal(self.bytes[at], new):
                before.add(last)
            assert before <= known, "a buffer is overwritten while it is in use"
            # A reader must know both.
            access.twin = last if last not in known else None
            self.written[block] = access
            self.bytes[at] = new


@dataclass(frozen=True)
class View:
    """A part of an allocation, as an array of some type and shape."""

    allocation: Allocation
    start: int
    dtype: Dtype
    shape: tuple[int, ...]
    layout: Any
    order: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.numpy.itemsize

    @property
    def values(self) -> NDArray[Any]:
        part = self.allocation.bytes[self.start : self.start + self.size]
        assert part.size == self.size, "a view beyond its allocation"
        return part.view(self.dtype.numpy).reshape(self.shape).transpose(self.order or range(len(self.shape)))

    def index(self, place: int) -> View:
        assert 0 <= place < self.shape[0], "an index beyond a view"
        start = self.start + place * (self.size // self.shape[0])
        return View(self.allocation, start, self.dtype, self.shape[1:], self.layout)

    def permute(self, order: tuple[int, ...]) -> View:
        return View(self.allocation, self.start, self.dtype, self.shape, self.layout, order)

    def store(self, tensor: Any) -> None:
        self.allocation.machine.store(self, tensor.values)

    @property
    def barrier(self) -> Barrier:
        assert self.layout == "barriers"
        assert self.start in self.allocation.barriers, "a barrier that is not initialised"
        return self.allocation.barriers[self.start]


class Machine:
    """One program: its shared memory, and its partitions. Alone, it is a cluster of one."""

    def __init__(self, seed: int, views_may_grow: bool, cluster: Cluster | None = None) -> None:
        self.views_may_grow = views_may_grow
        self.allocations: list[Allocation] = []
        self.running = Agent([set()], self)
        self.cluster = cluster or Cluster(seed)
        self.rank = len(self.cluster.machines)
        self.cluster.machines.append(self)
        self._alone = cluster is None
        self._parted = False

    def allocate(self, dtype: Dtype, shape: Sequence[int], layout: Any) -> View:
        size = int(np.prod(shape)) * dtype.numpy.itemsize
        self.allocations.append(Allocation(self, size))
        assert sum(each.bytes.size for each in self.allocations) <= SHARED_BYTES, "too much shared memory"
        return View(self.allocations[-1], 0, dtype, tuple(shape), layout)

    def reinterpret(self, view: View, dtype: Dtype, shape: Sequence[int], layout: Any) -> View:
        made = View(view.allocation, view.start, dtype, tuple(shape), layout)
        assert self.views_may_grow or made.size <= view.size, "a view that is larger than what it is made from"
        return made

    def at(self, address: int) -> tuple[Allocation, int]:
        """The allocation that the kernel takes for the one at the first address, and a place in it."""
        sizes = sorted(each.bytes.size for each in self.allocations)
        assert len(sizes) == 1 or sizes[-2] < sizes[-1], "which allocation comes first is not certain"
        largest = next(each for each in self.allocations if each.bytes.size == sizes[-1])
        assert FIRST_ADDRESS <= address < FIRST_ADDRESS + sizes[-1], "an address outside the ring"
        return largest, address - FIRST_ADDRESS

    def barrier(self, address: int, *, full: bool) -> Barrier:
        """The barrier at this address: of the first half, which products arrive at, or of those that copies do."""
        allocation, place = self.at(address)
        places = sorted(allocation.barriers)
        half = len(places) // 2
        assert place in (places[half:] if full else places[:half]), "a barrier of the other kind"
        return allocation.barriers[place]

    def init(self, view: View, count: int) -> None:
        assert not self._parted, "a barrier that is initialised after the warps have parted"
        assert view.layout == "barriers"
        assert view.start + 8 <= view.allocation.bytes.size, "a barrier beyond its allocation"
        view.allocation.barriers[view.start] = Barrier(count)

    def expect(self, view: View, size: int) -> None:
        view.barrier.update(1, size, set().union(*self.running.known))

    def wait(self, view: View, parity: int) -> None:
        barrier = view.barrier
        self.pause(lambda: barrier.phases & 1 != parity)
        barrier.acquire(self.running, parity)

    def load_tile(self, descriptor: Descriptor, corner: Sequence[int], barrier: View, view: View) -> None:
        assert view.shape == descriptor.box, "a view that is not the size of the box"
        assert view.layout == descriptor.layout, "a view that is swizzled otherwise than the box"
        assert view.dtype.numpy == descriptor.dtype.numpy
        self.pause()
        self._copy(descriptor, corner, view.allocation, view.start, barrier.barrier)

    def _copy(
        self, descriptor: Descriptor, corner: Sequence[int], allocation: Allocation, start: int, barrier: Barrier
    ) -> None:
        copy, data = Access(), descriptor.load(corner).view(np.uint8).reshape(-1)
        allocation.writes(copy, start, data, self.running.known[0])
        barrier.update(0, -data.size, {copy})

    def store(self, view: View, values: NDArray[Any]) -> None:
        in_use = [tile.allocation for _, _, tile in self.running.stores]
        assert view.allocation not in in_use, "a tile of C is replaced before the copy engine has read it"
        assert view.values.shape == values.shape, "a buffer of another shape"
        assert view.dtype.numpy == values.dtype
        view.values[...] = values
        self.running.unfenced.append(view.allocation)

    def fence(self) -> None:
        self.running.unfenced.clear()

    def store_tile(self, descriptor: Descriptor, corner: Sequence[int], view: View) -> None:
        assert view.shape == descriptor.box
        assert view.allocation not in self.running.unfenced, "the copy engine may not see what was stored"
        self.running.stores.append((descriptor, list(corner), view))

    def store_wait(self, pending: int) -> None:
        while len(self.running.stores) > pending:
            descriptor, corner, view = self.running.stores.pop(0)
            descriptor.store(corner, view.values)

    def copy(
        self, descriptor: Descriptor, corner: Sequence[int], address: int, barrier: int, ranks: Sequence[int]
    ) -> None:
        """A copy to the same place in several programs of the cluster, or in this one alone."""
        self.pause()
        for rank in ranks:
            other = self.reached(rank)
            assert descriptor.layout == 128, "a copy that is not swizzled over 128 bytes"
            self._copy(descriptor, corner, *other.at(address), other.barrier(barrier, full=True))

    def reached(self, rank: int) -> Machine:
        """A program of the cluster, whose shared memory is about to be used."""
        other = self.cluster.machines[rank]
        assert other is self or self.running.met, "another program's shared memory before all have met"
        assert not other.ended, "the shared memory of a program that has ended"
        return other

    def meet(self) -> None:
        """Wait for all partitions of all programs of the cluster."""
        agent, agents = self.running, self.cluster.agents
        agent.met += 1
        self.pause(lambda: all(each.met >= agent.met for each in agents))

    def wait_at(self, address: int, parity: int, *, patiently: bool) -> bool:
        """Whether the phase of this parity is over; `patiently`, not before it is."""
        barrier = self.barrier(address, full=False)
        self.pause(lambda: not patiently or barrier.phases & 1 != parity)
        if over := barrier.phases & 1 != parity:
            barrier.acquire(self.running, parity)
        return over

    @property
    def ended(self) -> bool:
        return self._parted and all(agent.done for agent in self.cluster.agents if agent.machine is self)

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let other partitions run, until `ready`."""
        agent = self.running
        if not self._parted:
            assert ready(), DEADLOCK
            return
        agent.ready = ready
        self.cluster.back.release()
        agent.turn.acquire()
        if self.cluster.errors:
            raise Ended

    def part(self, bodies: Sequence[Callable[[], None]], warpgroups: Sequence[int]) -> None:
        """Run the partitions to their ends; in a cluster, that is for the cluster to do, when all have parted."""
        known = self.running.known[0]
        self.cluster.agents += [Agent([set(known) for _ in range(count)], self) for count in warpgroups]
        self.cluster.bodies += bodies
        self._parted = True
        if self._alone:
            self.cluster.run()

    def check_end(self) -> None:
        copies = {access for each in self.allocations for access in each.written.values()}
        multiplying = next(agent for agent in self.cluster.agents if agent.machine is self)
        assert all(copies <= known for known in multiplying.known), "a copy that nobody waits for"
