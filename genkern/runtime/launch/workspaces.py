"""Workspaces and counters of the calls on one device: one of each for a stream of a thread, or for a graph capture.

Two threads that launch on one stream would each write over the partial sums of the other between two launches of a
call, and replays of two graphs may run at once: so neither shares. Counters are zero when they are made, and every call
leaves them zero.

What is kept comes from the driver, not from PyTorch's allocator, and is never freed. So it lies in no private pool:
torch.compile's graph trees warm up inside one, and refuse what stays alive there. A tensor for each call instead would
cost an eager call 1.4 us of host time, and zeroing counters another launch. Nothing is freed, since a free would wait
for the device, and graphs and kernels on their way may still use it: what grows at least doubles, and what a thread had
goes to the next one on the same stream, whose work comes after that of the first. cuBLAS's workspaces in PyTorch live
as long. A call that goes into a graph takes a temporary tensor as workspace, which is the graph's own, and costs a
replay nothing; of its counters, a few KB, there is a set for each capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from genkern.runtime.launch.launcher import forget_workspaces

# Captures of a thread that are known: the oldest goes when they have come and gone, its graph keeps the memory.
_MOST_CAPTURES = 64
_LEAST_BYTES = 2**16
_ALIGNMENT = 256

# Of memory: its address and its bytes.
Piece = tuple[int, int]


class _Rooms:
    """What one thread has on each stream; the next thread's when it ends."""

    def __init__(self, free: dict[tuple[int, bool], list[Piece]]) -> None:
        # By stream, and whether they are counters.
        self.eager: dict[tuple[int, bool], Piece] = {}
        self.captured: dict[tuple[int, int], Piece] = {}
        self._free = free

    def __del__(self) -> None:
        # The system's thread may go on, and come back as another of Python's.
        forget_workspaces()
        for key, piece in self.eager.items():
            self._free.setdefault(key, []).append(piece)


class Workspaces:
    """`memory(bytes)` is the address of new memory on the device that is zero, outside of any pool, and stays."""

    def __init__(self, memory: Callable[[int], int]) -> None:
        self._memory = memory
        self._free: dict[tuple[int, bool], list[Piece]] = {}
        self._thread = threading.local()
        # What is left of the piece that captures' counters are cut from.
        self._rest = (0, 0)
        self._lock = threading.Lock()

    def take(self, stream: int, workspace_bytes: int, counter_bytes: int) -> tuple[int, int]:
        """Addresses of a workspace and of zeroed counters, at least so large, for calls of this thread on the stream.

        Raises LaunchError where there is no memory.
        """
        return self._eager((stream, False), workspace_bytes), self._eager((stream, True), counter_bytes)

    def counters(self, stream: int, capture: int, counter_bytes: int) -> int:
        """The address of zeroed counters for the calls of this thread that go into a graph by the stream."""
        if not counter_bytes:
            return 0
        known, key = self._rooms().captured, (stream, capture)
        address, size = known.get(key, (0, 0))
        if size < counter_bytes:
            if len(known) >= _MOST_CAPTURES:
                del known[next(iter(known))]
            address, _ = known[key] = self._cut(counter_bytes)
        return address

    def drop(self, stream: int) -> None:
        """Forget what this thread has on the stream: after a call that failed half way its counters are not zero."""
        rooms = self._rooms()
        rooms.eager.pop((stream, True), None)
        for key in [key for key in rooms.captured if key[0] == stream]:
            del rooms.captured[key]
        forget_workspaces()

    def _rooms(self) -> _Rooms:
        try:
            rooms: _Rooms = self._thread.rooms
        except AttributeError:
            rooms = self._thread.rooms = _Rooms(self._free)
        return rooms

    def _eager(self, key: tuple[int, bool], needed: int) -> int:
        if not needed:
            return 0
        rooms = self._rooms().eager
        address, size = rooms.get(key, (0, 0))
        if size < needed:
            address, size = self._left(key, needed) or self._new(max(needed, 2 * size, _LEAST_BYTES))
            rooms[key] = address, size
        return address

    def _new(self, size: int) -> Piece:
        return self._memory(size), size

    def _left(self, key: tuple[int, bool], needed: int) -> Piece | None:
        """What a thread that has ended had on the stream, if it is large enough."""
        with self._lock:
            free = self._free.get(key, [])
            found = next((piece for piece in free if piece[1] >= needed), None)
            if found is not None:
                free.remove(found)
            return found

    def _cut(self, needed: int) -> Piece:
        needed = -(-needed // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            address, left = self._rest
            if left < needed:
                left = max(needed, _LEAST_BYTES)
                address = self._memory(left)
            self._rest = address + needed, left - needed
        return address, needed
