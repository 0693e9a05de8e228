"""SMs as the kernels in Gluon see them: shared memory, barriers, the copy engine, and partitions that take turns.

Each warp knows which copies and products are finished, and which phases are over (tests/gluon_memory.py): what it has
waited for itself, and what those knew who arrived there. Warps of a partition run side by side here, but know nothing
of one another.
"""

from __future__ import annotations

import functools
import operator
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gluon_cluster import DEADLOCK, Cluster
from gluon_memory import Allocation, Barrier, Descriptor, Dtype, View, lines_at
from numpy.typing import NDArray

# Where the largest allocation begins: an SM keeps the first 1024 bytes to itself.
FIRST_ADDRESS = 1024
# In a cluster, addresses have the program's rank from this bit on.
_RANK_BIT = 24
# As a number, what createpolicy makes of evict_first for all of a copy (CUTLASS: TMA::CacheHintSm90::EVICT_FIRST).
EVICT_FIRST = 0x12F0000000000000
# What one program may have of an SM's shared memory.
SHARED_BYTES = 227 * 1024
_UNSEEN = "a barrier that was made where nobody else may have seen it"


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Agent:
    """A partition of the program, or the kernel before it parts.

    `known` is what each of its warps knows to be over, `own` what single threads know beyond that, by their numbers in
    the program, which are `threads`.
    """

    known: list[int]
    machine: Machine
    threads: NDArray[np.int64]
    own: dict[int, int] = field(default_factory=dict)
    # By warpgroup, oldest first: groups of products that are in flight, and products that are in no group yet.
    products: list[list[Any]] = field(default_factory=list)
    open_group: list[Any] = field(default_factory=list)
    stores: list[tuple[Descriptor, Sequence[int], View]] = field(default_factory=list)
    unfenced: list[Allocation] = field(default_factory=list)
    # By thread, what it has begun to copy number by number, for the barrier where it arrives with that.
    copying: dict[int, int] = field(default_factory=dict)
    # Tiles that all threads have stored, or are reading, parts of since they last met.
    storing: list[Allocation] = field(default_factory=list)
    reading: list[Allocation] = field(default_factory=list)
    # Whether some thread's stores to memory may come after what another thread does next.
    unordered: bool = False
    # How often it has arrived at the barrier of its cluster, and has waited there.
    arrived: int = 0
    met: int = 0
    ready: Callable[[], bool] = lambda: True
    # Held but for the moment between being let go on and going on.
    turn: threading.Lock = field(default_factory=_held_lock)
    done: bool = False

    def __post_init__(self) -> None:
        self.products = [[] for _ in range(self.groups)]
        self.open_group = [None] * self.groups

    @property
    def groups(self) -> int:
        """Warpgroups; a partition of one warp counts as one, too."""
        return max(1, len(self.known) // 4)

    def check_end(self) -> None:
        assert not any([*self.products, *self.open_group]), "products that nobody waits for"
        assert not self.stores, "a store that nobody waits for"
        assert not self.copying, "numbers that are copied, and nobody hears when they are there"

    def knows(self, thread: int) -> int:
        """What this thread knows to be over."""
        return self.known[(thread - int(self.threads[0])) // 32] | self.own.get(thread, 0)

    def all_know(self, warps: Iterable[int]) -> int:
        """What all threads of these of its warps know to be over."""
        return functools.reduce(operator.and_, (self.known[warp] for warp in warps))

    def share(self, warps: Iterable[int]) -> None:
        """What each thread of one of these warps knows, the whole warp does now."""
        for warp in warps:
            for thread in self.threads[warp * 32 : warp * 32 + 32].tolist():
                self.known[warp] |= self.own.pop(thread, 0)

    def has_waited(self, barrier: Barrier, parity: int, taken: NDArray[np.bool_], in_cluster: bool) -> None:
        """These of its threads know of the end of the phase now."""
        for warp, lanes in enumerate(taken.reshape(-1, 32)):
            if lanes.all():
                self.known[warp] = barrier.waited(parity, self.known[warp], in_cluster)
            else:
                for thread in self.threads[warp * 32 : warp * 32 + 32][lanes].tolist():
                    self.own[thread] = barrier.waited(parity, self.knows(thread), in_cluster)


class Machine:
    """One program: its shared memory, and its partitions. Alone, it is a cluster of one."""

    def __init__(self, seed: int, warps: int, cluster: Cluster | None = None) -> None:
        self.allocations: list[Allocation] = []
        # By how many allocations there are.
        self._largest_of: dict[int, Allocation] = {}
        self.running = Agent([0] * warps, self, np.arange(32 * warps))
        self.cluster = cluster or Cluster(seed)
        self.rank = len(self.cluster.machines)
        self.cluster.machines.append(self)
        self.parted = False
        self.random = random.Random(seed)
        # Which thread of a warp elect.sync takes: always the same, nobody says which, and not the first here.
        self.elected = self.random.randrange(1, 32)
        self._alone = cluster is None
        # By name: who has come in this phase, and how many phases are over.
        self.named: dict[int, list[int]] = {}
        # The kernel's, where it has any.
        self.parameters: Any = None

    @property
    def first_address(self) -> int:
        return FIRST_ADDRESS | self.rank << _RANK_BIT

    def allocate(self, dtype: Dtype, shape: Sequence[int], layout: Any) -> View:
        size = int(np.prod(shape)) * dtype.numpy.itemsize
        self.allocations.append(Allocation(self, size))
        assert sum(each.bytes.size for each in self.allocations) <= SHARED_BYTES, "too much shared memory"
        return View(self.allocations[-1], dtype, tuple(shape))

    def mapped(self, address: Any, rank: int) -> Any:
        """The address, or the addresses, of the same place in another program of the cluster."""
        assert 0 <= rank < len(self.cluster.machines), "a program that the cluster does not have"
        return (address & ((1 << _RANK_BIT) - 1)) | rank << _RANK_BIT

    def at(self, address: int) -> tuple[Allocation, int]:
        """The allocation that the kernel takes for the one at the first address, and a place in it."""
        assert address >> _RANK_BIT == self.rank, "an address of another program"
        place = (address & ((1 << _RANK_BIT) - 1)) - FIRST_ADDRESS
        largest = self._largest_of.get(len(self.allocations)) or self._largest()
        assert 0 <= place < largest.bytes.size, "an address outside the ring"
        largest.by_address = True
        return largest, place

    def _largest(self) -> Allocation:
        sizes = sorted(each.bytes.size for each in self.allocations)
        assert len(sizes) == 1 or sizes[-2] < sizes[-1], "which allocation comes first is not certain"
        found = next(each for each in self.allocations if each.bytes.size == sizes[-1])
        self._largest_of[len(self.allocations)] = found
        return found

    def make(self, address: int, count: int, thread: int) -> None:
        """A barrier that `count` arrive at, made by this thread."""
        assert not self.parted, "a barrier that is made after the warps have parted"
        allocation, place = self.at(address)
        assert place % 8 == 0, "a barrier that is not aligned"
        assert place not in allocation.barriers, "a barrier that is made twice"
        assert place // 1024 not in [*allocation.written, *allocation.parts], "copied over"
        allocation.barriers[place] = Barrier(count, thread, self.cluster.new_bit)

    @property
    def barriers(self) -> list[Barrier]:
        return [barrier for allocation in self.allocations for barrier in allocation.barriers.values()]

    def arrive_named(self, name: int, threads: int, count: int) -> int:
        """So many come to a barrier of the program for `count`; returns the phase that they are of."""
        assert 0 < name < 16, "a barrier that is none, or everyone's"
        arrivals, phase = self.named.setdefault(name, [0, 0])
        assert arrivals + threads <= count, "an arrival too many"
        done = arrivals + threads == count
        self.named[name] = [0, phase + 1] if done else [arrivals + threads, phase]
        return phase

    def floats(self, addresses: NDArray[np.int64]) -> NDArray[np.float32]:
        """The numbers at these addresses, which all warps of the partition read."""
        agent = self.running
        access, known = self.cluster.new_bit(), agent.all_know(range(len(agent.known)))
        # All of them lie in one allocation.
        allocation, first = self.at(int(addresses.min()))
        self.at(int(addresses.max()))
        starts = addresses - (addresses.min() - first)
        for start in np.unique(starts).tolist():
            allocation.reads(access, start, 4, known)
        found = allocation.bytes[starts[..., None] + np.arange(4)].view(np.float32)[..., 0]
        # They are there before the warp does anything else.
        agent.known = [each | access for each in agent.known]
        return found

    def fence_barriers(self, threads: NDArray[np.int64]) -> None:
        """What these threads have made, copies and other programs may see."""
        for barrier in self.barriers:
            barrier.fenced |= barrier.maker in threads

    def thread_barrier(self) -> None:
        self.running.unordered = False
        self.running.storing.clear()
        self.running.reading.clear()
        for barrier in self.barriers:
            barrier.shared = True

    def barrier(self, address: int, threads: NDArray[np.int64]) -> Barrier:
        """The barrier at this address, for these threads."""
        allocation, place = self.at(address)
        assert place in allocation.barriers, "a barrier that is not made"
        barrier = allocation.barriers[place]
        assert barrier.shared or np.all(threads == barrier.maker), _UNSEEN
        return barrier

    def barrier_of(self, address: int, threads: NDArray[np.int64]) -> Barrier:
        """The barrier at an address in the cluster's shared memory, for these threads."""
        if address >> _RANK_BIT == self.rank:
            return self.barrier(address, threads)
        assert self.running.met, "another program's shared memory before all have met"
        other = self.cluster.machines[address >> _RANK_BIT]
        assert not other.ended, "the shared memory of a program that has ended"
        allocation, place = other.at(address)
        assert place in allocation.barriers, "a barrier that is not made"
        assert allocation.barriers[place].announced, _UNSEEN
        return allocation.barriers[place]

    def copy(
        self,
        descriptor: Any,
        corner: Sequence[int],
        address: int,
        barrier_address: int,
        thread: int,
        policy: int | None,
        mask: int | None = None,
    ) -> None:
        """One box to this address, by the copy engine, which a thread has asked for it; `policy` is what L2 is told.

        With a `mask` of programs it goes to the same place of each of these, and to its barrier there.
        """
        self.pause()
        assert mask is None or 0 < mask < 1 << len(self.cluster.machines), "a mask of programs that are not there"
        assert isinstance(descriptor, Descriptor), "a copy from what is no descriptor"
        assert descriptor.layout == 128, "a copy that is not swizzled over 128 bytes"
        assert policy == (EVICT_FIRST if descriptor.read_once else None), "another place in L2 than its matrix needs"
        data = descriptor.load(corner).view(np.uint8).reshape(-1)
        for rank in [self.rank] if mask is None else [each for each in range(mask.bit_length()) if mask >> each & 1]:
            barrier = self.barrier_of(self.mapped(barrier_address, rank), np.array([thread]))
            assert barrier.fenced, _UNSEEN
            copy, other = self.cluster.new_bit(), self.cluster.machines[rank]
            allocation, start = other.at(self.mapped(address, rank))
            allocation.writes(copy, start, data, self.running.knows(thread))
            barrier.update(0, -data.size, copy)

    def copy_bytes(self, source: int, size: int, address: int, barrier_address: int, thread: int) -> None:
        """Bytes of memory to this address, by the copy engine, which a thread has asked for them."""
        self.pause()
        barrier = self.barrier(barrier_address, np.array([thread]))
        assert barrier.fenced, _UNSEEN
        assert source % 16 == address % 16 == size % 16 == 0, "bytes that the copy engine does not take"
        assert size > 0, "a copy of nothing"
        copy, (allocation, start) = self.cluster.new_bit(), self.at(address)
        allocation.writes_numbers(copy, start, lines_at(source, size), self.running.knows(thread))
        barrier.update(0, -size, copy)

    def send(self, address: int, data: NDArray[np.uint8], barrier_address: int, known: int) -> None:
        """Bytes to an address in the shared memory of another program of the cluster, and to its barrier there."""
        self.pause()
        other = self.cluster.machines[address >> _RANK_BIT]
        assert other is not self, "sums that a program sends to itself"
        barrier = self.barrier_of(barrier_address, self.running.threads)
        sums, (landing, start) = self.cluster.new_bit(), other.at(address)
        landing.writes(sums, start, data, known)
        barrier.sent |= sums
        barrier.update(0, -data.size, sums)

    def store(self, view: View, values: NDArray[Any]) -> None:
        in_use = [tile.allocation for _, _, tile in self.running.stores]
        assert view.allocation not in in_use, "a tile of C is replaced before the copy engine has read it"
        assert view.values.shape == values.shape, "a buffer of another shape"
        assert view.dtype.numpy == values.dtype
        assert view.allocation not in self.running.reading, "a tile of C is replaced while other threads read it"
        view.values[...] = values
        self.running.unfenced.append(view.allocation)
        self.running.storing.append(view.allocation)

    def load(self, view: View) -> NDArray[Any]:
        assert view.allocation not in self.running.storing, "a tile of C is read before all threads have stored it"
        self.running.reading.append(view.allocation)
        return view.values.copy()

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
        self.cluster.pause(agent)

    def part(self, bodies: Sequence[Callable[[], None]], helping: Sequence[int]) -> None:
        """Run the partitions to their ends; in a cluster, that is for the cluster to do, when all have parted.

        The first has the threads that there are, the others so many warps each: these are rounded up to warpgroups, and
        a partition of one warp may be any in its group. All of them begin with a barrier of all threads.
        """
        self.thread_barrier()
        first = self.running
        # That barrier hands on what all of them know.
        known = functools.reduce(operator.or_, (*first.known, *first.own.values()))
        agents = [Agent([known] * len(first.known), self, first.threads)]
        agents[0].arrived, agents[0].met = first.arrived, first.met
        place = len(first.threads)
        for warps in helping:
            assert warps in (1, 4), "a partition that this knows no place for"
            start = place + 32 * self.random.randrange(0, 5 - warps)
            agents.append(Agent([known] * warps, self, np.arange(start, start + 32 * warps)))
            place += 128
        self.cluster.agents += agents
        self.cluster.bodies += bodies
        self.parted = True
        if self._alone:
            self.cluster.run()

    def check_end(self) -> None:
        written = [bits for each in self.allocations for bits in each.writers]
        agents = [agent for agent in self.cluster.agents if agent.machine is self]
        waited = functools.reduce(operator.or_, (agent.all_know(range(len(agent.known))) for agent in agents))
        assert all(bit & waited for bit in written), "a copy that nobody waits for"

    def check_kept(self) -> None:
        """To be called when the kernel has returned."""
        used = [each for each in self.allocations if each.by_address]
        assert all(each.kept for each in used), "memory that the compiler may use for something else"
