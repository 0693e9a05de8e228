"""The queue of compile jobs, by owner and rank; each key is compiled once, however many owners want it."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field

from genkern.compile.cache import Failure
from genkern.compile.compiler import CompileJob
from genkern.gemm.records import Binary

# Called with a key and its result, in a thread of the farm: it must be quick and must not raise.
ResultCallback = Callable[[str, "Binary | Failure | Exception"], None]


@dataclass
class _OwnerRequest:
    """One owner's request for a key."""

    job: CompileJob
    rank: int
    tell: ResultCallback


@dataclass
class _QueuedJob:
    """All requests for one key; `begun_for` is the owner whose job is being compiled, None if no job is."""

    wishes: dict[Hashable, _OwnerRequest] = field(default_factory=dict)
    begun_for: Hashable | None = None


class CompileQueue:
    """The queue of compile jobs. Not thread-safe: the farm has a lock.

    The next job belongs to the owner with the fewest jobs under way, and is that owner's job of the lowest rank. If
    several owners have equally few, the lowest rank comes first, then the earliest request. So devices share a farm
    evenly, and each gets its most wanted binary first. Owners that stand behind come after all others.
    """

    def __init__(self) -> None:
        self._orders: dict[str, _QueuedJob] = {}
        self._queues: dict[Hashable, list[tuple[int, int, str]]] = {}
        self._numbers = itertools.count()
        self._in_flight: Counter[Hashable] = Counter()
        self._background: set[Hashable] = set()

    def __len__(self) -> int:
        """The number of keys that are wanted and not available yet."""
        return len(self._orders)

    @property
    def in_flight(self) -> int:
        """The number of jobs that have begun and not ended."""
        return self._in_flight.total()

    def add(self, owner: Hashable, job: CompileJob, rank: int, tell: ResultCallback) -> None:
        order = self._orders.setdefault(job.key, _QueuedJob())
        order.wishes[owner] = _OwnerRequest(job, rank, tell)
        if order.begun_for is None:
            self._queue(owner, rank, job.key)

    def set_background(self, owner: Hashable, *, background: bool) -> None:
        """Put an owner behind the owners that do not stand behind, or give it equal priority again."""
        if background:
            self._background.add(owner)
        else:
            self._background.discard(owner)

    def drop(self, owner: Hashable, keys: Collection[str] | None = None) -> None:
        """Remove the owner's requests for `keys` (None: all). A job that has begun is finished, but the owner is not
        notified."""
        if keys is None:
            self._background.discard(owner)
        for key in list(self._orders) if keys is None else keys:
            if (order := self._orders.get(key)) is not None:
                order.wishes.pop(owner, None)
                if not order.wishes and order.begun_for is None:
                    del self._orders[key]

    def next_job(self, *, also_background: bool = True) -> CompileJob | None:
        """Return the job to begin next. None if no job waits, or only owners that stand behind have jobs and
        `also_behind` is False."""
        owners = [owner for owner in self._queues if also_background or owner not in self._background]
        for owner in sorted(owners, key=self._turn):
            queue = self._queues[owner]
            while queue:
                _, _, key = heapq.heappop(queue)
                order = self._orders.get(key)
                if order is not None and order.begun_for is None and owner in order.wishes:
                    if not queue:
                        del self._queues[owner]
                    order.begun_for = owner
                    self._in_flight[owner] += 1
                    return order.wishes[owner].job
            del self._queues[owner]
        return None

    def requeue(self, key: str) -> None:
        """Queue a job again that was lost through no fault of its kernel, if it is still wanted."""
        if (order := self._ended(key)) is not None:
            for owner, wish in order.wishes.items():
                self._queue(owner, wish.rank, key)
            if not order.wishes:
                del self._orders[key]

    def pop_finished(self, key: str) -> list[ResultCallback]:
        """Remove a job that has ended; return the callbacks of its owners, in the order of their requests."""
        if (order := self._ended(key)) is None:
            return []
        del self._orders[key]
        return [wish.tell for wish in order.wishes.values()]

    def is_for_others(self, key: str) -> bool:
        """Return True if the owner whose job is being compiled no longer wants the key, and other owners do."""
        order = self._orders.get(key)
        return order is not None and bool(order.wishes) and order.begun_for not in order.wishes

    def pop_all(self) -> Iterator[tuple[str, ResultCallback]]:
        """Remove all requests, begun or not, and return the key and callback of each."""
        orders, self._orders = self._orders, {}
        self._queues.clear()
        self._in_flight.clear()
        self._background.clear()
        return ((key, wish.tell) for key, order in orders.items() for wish in order.wishes.values())

    def _turn(self, owner: Hashable) -> tuple[bool, int, tuple[int, int, str]]:
        return owner in self._background, self._in_flight[owner], self._queues[owner][0]

    def _queue(self, owner: Hashable, rank: int, key: str) -> None:
        heapq.heappush(self._queues.setdefault(owner, []), (rank, next(self._numbers), key))

    def _ended(self, key: str) -> _QueuedJob | None:
        if (order := self._orders.get(key)) is None or order.begun_for is None:
            return None
        owner, order.begun_for = order.begun_for, None
        self._in_flight[owner] -= 1
        if not self._in_flight[owner]:
            del self._in_flight[owner]
        return order
