"""SMs as the kernels in Gluon see them: shared memory, barriers, the copy engine, and partitions that take turns.

Each warpgroup has a set of the copies and products that it knows to be finished (tests/gluon_memory.py). A phase of a
barrier tells a waiter no more than the phase that its own waits prove to be over.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gluon_cluster import DEADLOCK, Cluster, Ended
from gluon_memory import Access, Allocation, Barrier, Descriptor, Dtype, View
from numpy.typing import NDArray

# Where the largest allocation begins: an SM keeps the first 1024 bytes to itself.
FIRST_ADDRESS = 1024
# In a cluster, addresses have the program's rank from this bit on.
_RANK_BIT = 24
# What one program may have of an SM's shared memory.
SHARED_BYTES = 227 * 1024
_UNSEEN = "a barrier that was made where nobody else may have seen it"


@dataclass(eq=False)
class Agent:
    """A partition of the program, or the kernel before it parts: what each of its warpgroups knows to be finished.

    `threads` are their numbers in the program.
    """

    known: list[set[Access]]
    machine: Machine
    threads: NDArray[np.int64]
    seen: dict[tuple[int, Barrier], int] = field(default_factory=dict)
    # By warpgroup, oldest first: groups of products that are in flight, and products that are in no group yet.
    products: list[list[list[Any]]] = field(default_factory=list)
    open_group: list[list[Any]] = field(default_factory=list)
    stores: list[tuple[Descriptor, Sequence[int], View]] = field(default_factory=list)
    unfenced: list[Allocation] = field(default_factory=list)
    # Whether some thread's stores to memory may come after what another thread does next.
    unordered: bool = False
    # How often it has arrived at the barrier of its cluster, and has waited there.
    arrived: int = 0
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

    def acquire(self, barrier: Barrier, parity: int, group: int) -> None:
        """What the end of the phase tells, of which parity and the group's earlier waits say that it is over."""
        before = self.seen.get((group, barrier), 0)
        over = before + (before & 1 == parity)
        self.seen[group, barrier] = over
        for finished in barrier.handed_on[before:over]:
            self.known[group] |= finished


class Machine:
    """One program: its shared memory, and its partitions. Alone, it is a cluster of one."""

    def __init__(self, seed: int, warps: int, cluster: Cluster | None = None) -> None:
        self.allocations: list[Allocation] = []
        self.running = Agent([set()], self, np.arange(32 * warps))
        self.cluster = cluster or Cluster(seed)
        self.rank = len(self.cluster.machines)
        self.cluster.machines.append(self)
        self.parted = False
        self.random = random.Random(seed)
        # Which thread of a warp elect.sync takes: always the same, but nobody says which.
        self.elected = self.random.randrange(32)
        self._alone = cluster is None

    @property
    def first_address(self) -> int:
        return FIRST_ADDRESS | self.rank << _RANK_BIT

    def allocate(self, dtype: Dtype, shape: Sequence[int], layout: Any) -> View:
        size = int(np.prod(shape)) * dtype.numpy.itemsize
        self.allocations.append(Allocation(self, size))
        assert sum(each.bytes.size for each in self.allocations) <= SHARED_BYTES, "too much shared memory"
        return View(self.allocations[-1], dtype, tuple(shape))

    def mapped(self, address: int, rank: int) -> int:
        """The address of the same place in another program of the cluster."""
        assert 0 <= rank < len(self.cluster.machines), "a program that the cluster does not have"
        return (address & ((1 << _RANK_BIT) - 1)) | rank << _RANK_BIT

    def at(self, address: int) -> tuple[Allocation, int]:
        """The allocation that the kernel takes for the one at the first address, and a place in it."""
        assert address >> _RANK_BIT == self.rank, "an address of another program"
        place = (address & ((1 << _RANK_BIT) - 1)) - FIRST_ADDRESS
        sizes = sorted(each.bytes.size for each in self.allocations)
        assert len(sizes) == 1 or sizes[-2] < sizes[-1], "which allocation comes first is not certain"
        largest = next(each for each in self.allocations if each.bytes.size == sizes[-1])
        assert 0 <= place < sizes[-1], "an address outside the ring"
        largest.by_address = True
        return largest, place

    def make(self, address: int, count: int, thread: int) -> None:
        """A barrier that `count` arrive at, made by this thread."""
        assert not self.parted, "a barrier that is made after the warps have parted"
        allocation, place = self.at(address)
        assert place % 8 == 0, "a barrier that is not aligned"
        assert place not in allocation.barriers, "a barrier that is made twice"
        assert not any(start * 1024 <= place < start * 1024 + 1024 for start in allocation.written), "copied over"
        allocation.barriers[place] = Barrier(count, thread)

    @property
    def barriers(self) -> list[Barrier]:
        return [barrier for allocation in self.allocations for barrier in allocation.barriers.values()]

    def fence_barriers(self, threads: NDArray[np.int64]) -> None:
        """What these threads have made, copies and other programs may see."""
        for barrier in self.barriers:
            barrier.fenced |= barrier.maker in threads

    def thread_barrier(self) -> None:
        self.running.unordered = False
        for barrier in self.barriers:
            barrier.shared = True

    def barrier(self, address: int, threads: NDArray[np.int64]) -> Barrier:
        """The barrier at this address, for these threads."""
        allocation, place = self.at(address)
        assert place in allocation.barriers, "a barrier that is not made"
        barrier = allocation.barriers[place]
        assert barrier.shared or np.all(threads == barrier.maker), _UNSEEN
        return barrier

    def wait_at(self, address: int, parity: int, groups: Sequence[int], *, patiently: bool) -> bool:
        """Whether the phase of this parity is over; `patiently`, not before it is."""
        barrier = self.barrier(address, self.running.threads)
        self.pause(lambda: not patiently or barrier.phases & 1 != parity)
        if not patiently and self.random.random() < 0.5:
            # It may well come back with nothing.
            return False
        if over := barrier.phases & 1 != parity:
            for group in groups:
                self.running.acquire(barrier, parity, group)
        return over

    def copy(self, descriptor: Any, corner: Sequence[int], address: int, barrier_address: int, thread: int) -> None:
        """One box to this address, by the copy engine, which a thread has asked for it."""
        self.pause()
        barrier = self.barrier(barrier_address, np.array([thread]))
        assert barrier.fenced, _UNSEEN
        assert isinstance(descriptor, Descriptor), "a copy from what is no descriptor"
        assert descriptor.layout == 128, "a copy that is not swizzled over 128 bytes"
        allocation, start = self.at(address)
        copy, data = Access(), descriptor.load(corner).view(np.uint8).reshape(-1)
        allocation.writes(copy, start, data, self.running.known[0])
        barrier.update(0, -data.size, {copy})

    def send(self, address: int, data: NDArray[np.uint8], barrier_address: int, known: set[Access]) -> None:
        """Bytes to an address in the shared memory of another program of the cluster, and to its barrier there."""
        self.pause()
        other = self.cluster.machines[address >> _RANK_BIT]
        assert other is not self, "sums that a program sends to itself"
        assert self.running.met, "another program's shared memory before all have met"
        assert not other.ended, "the shared memory of a program that has ended"
        allocation, place = other.at(barrier_address)
        assert place in allocation.barriers, "a barrier that is not made"
        assert allocation.barriers[place].announced, _UNSEEN
        sums, (landing, start) = Access(), other.at(address)
        landing.writes(sums, start, data, known)
        allocation.barriers[place].update(0, -data.size, {sums})

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

    def arrive_at_cluster(self) -> None:
        """For all threads of the partition; what barriers they have made and fenced, others may see once they met."""
        assert self.running.arrived == self.running.met, "arrives at the cluster's barrier twice"
        self.running.arrived += 1
        for barrier in self.barriers:
            barrier.announced |= barrier.fenced and barrier.maker in self.running.threads

    def meet(self) -> None:
        """Wait until all partitions of all programs of the cluster have arrived."""
        agent, agents = self.running, self.cluster.agents
        agent.met += 1
        assert agent.arrived == agent.met, "waits at the cluster's barrier without arriving there"
        self.pause(lambda: agents != [] and all(each.arrived >= agent.met for each in agents))

    @property
    def ended(self) -> bool:
        return self.parted and all(agent.done for agent in self.cluster.agents if agent.machine is self)

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let other partitions run, until `ready`."""
        agent = self.running
        if not self.parted:
            assert ready(), DEADLOCK
            return
        agent.ready = ready
        self.cluster.back.release()
        agent.turn.acquire()
        if self.cluster.errors:
            raise Ended

    def part(self, bodies: Sequence[Callable[[], None]], helping: Sequence[int]) -> None:
        """Run the partitions to their ends; in a cluster, that is for the cluster to do, when all have parted.

        The first has the threads that there are, the others so many warps each: these are rounded up to warpgroups, and
        a partition of one warp may be any in its group. All of them begin with a barrier of all threads.
        """
        self.thread_barrier()
        first = self.running
        groups = len(first.threads) // 128
        agents = [Agent([set(first.known[0]) for _ in range(groups)], self, first.threads)]
        agents[0].arrived, agents[0].met = first.arrived, first.met
        place = len(first.threads)
        for warps in helping:
            assert warps in (1, 4), "a partition that this knows no place for"
            start = place + 32 * self.random.randrange(0, 5 - warps)
            agents.append(Agent([set(first.known[0])], self, np.arange(start, start + 32 * warps)))
            place += 128
        self.cluster.agents += agents
        self.cluster.bodies += bodies
        self.parted = True
        if self._alone:
            self.cluster.run()

    def check_end(self) -> None:
        copies = {access for each in self.allocations for access in each.written.values()}
        multiplying = next(agent for agent in self.cluster.agents if agent.machine is self)
        assert all(copies <= known for known in multiplying.known), "a copy that nobody waits for"

    def check_kept(self) -> None:
        """To be called when the kernel has returned."""
        used = [each for each in self.allocations if each.by_address]
        assert all(each.kept for each in used), "memory that the compiler may use for something else"
