"""Workspaces and counters of calls on one device: one pair per thread and stream, or per graph capture.

They are not shared further: two threads that launch on one stream would overwrite each other's partial sums between the
launches of a call, and replays of two graphs may run at the same time. Counters are zero when they are allocated, and
every call leaves them zero.

The memory comes from the driver, not from PyTorch's allocator. Hence it belongs to no private pool: torch.compile's
graph trees warm up inside a pool and refuse tensors that stay alive there. A tensor per call would cost an eager call
1.4 us of host time, and zeroing counters another launch. A call that is captured into a graph takes a temporary tensor
as workspace, which belongs to the graph and costs a replay nothing. Its counters, a few KB, are allocated once per
capture and never freed, since the last replay of a graph is unknown.

A device keeps at most MOST_BYTES. Beyond that, pieces without an owner are freed first, then the calling thread's
pieces on other streams; if that is not enough, the call takes temporary tensors. Sizes fall into few classes, so that a
piece that a thread outgrows, or leaves when it ends, can serve other threads on the same stream, whose work is ordered
after its own.

The default stream and the streams of PyTorch's pools live as long as the process. Other streams may end, and a new
stream may get the handle of an old one whose work is still running. Each call therefore asks the driver for the
stream's number, which is never reused. The memory of an ended stream is freed, which waits for its work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from genkern.errors import LaunchError
from genkern.runtime.launch.launcher import forget_workspaces

# Limit per device: four threads on four streams with 16 MiB each. A sixteenth of it may hold counters of captures.
MOST_BYTES = 2**28
_OF_CAPTURES = 16
# Captures that are remembered per thread. If there are more, the oldest is forgotten; its memory stays, for its graph.
_MOST_CAPTURES = 64
_LEAST_BYTES = 2**16
# Sizes are powers of two up to this, and multiples of it beyond.
_STEP_BYTES = 2**24
_ALIGNMENT = 256

# A piece of memory: its address and size in bytes.
Piece = tuple[int, int]
_NONE = 0, 0
# A stream's handle and number, and whether the piece holds counters.
_Key = tuple[int, int, bool]


def class_bytes(needed: int) -> int:
    """Return the size of the piece that is allocated if `needed` bytes are needed."""
    if needed > _STEP_BYTES:
        return -(-needed // _STEP_BYTES) * _STEP_BYTES
    return max(_LEAST_BYTES, 1 << (needed - 1).bit_length())


@dataclass(frozen=True)
class WorkspaceUsage:
    """The memory that calls keep on a device.

    bytes: everything that is kept.
    most_bytes: the limit of `bytes`.
    free_bytes: pieces that no thread owns.
    captured_bytes: counters of graphs, which are never freed.
    """

    bytes: int
    most_bytes: int
    free_bytes: int
    captured_bytes: int


@dataclass
class _StreamPieces:
    """The pieces of a thread on a stream: workspace and counters. `number` identifies the stream (see Workspaces)."""

    number: int
    pieces: list[Piece] = field(default_factory=lambda: [_NONE, _NONE])


class _ThreadPieces:
    """The pieces of one thread on each stream. When the thread ends, they become free for other threads."""

    def __init__(self, free: dict[_Key, list[Piece]]) -> None:
        self.eager: dict[int, _StreamPieces] = {}
        self.captured: dict[tuple[int, int], Piece] = {}
        self._free = free

    def __del__(self) -> None:
        # The thread of the operating system may go on as another Python thread, for which the C extension must not
        # reuse these pieces.
        forget_workspaces()
        for stream, room in self.eager.items():
            for is_counters, piece in enumerate(room.pieces):
                if piece[1]:
                    self._free.setdefault((stream, room.number, bool(is_counters)), []).append(piece)


class Workspaces:
    """Workspaces and counters on one device.

    memory: allocates bytes outside of any pool, and returns the address of zeroed memory.
    release: frees memory at an address after waiting for its users.
    stream_number: 0 for a stream that never ends, a unique number for a stream that may end, None if unknown.
    most_bytes: the limit of all memory that is kept.
    """

    def __init__(
        self,
        memory: Callable[[int], int],
        release: Callable[[int], object] = lambda address: None,
        stream_number: Callable[[int], int | None] = lambda stream: 0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._memory, self._release, self._stream_number = memory, release, stream_number
        self._most_bytes = most_bytes
        self._free: dict[_Key, list[Piece]] = {}
        self._thread = threading.local()
        # Everything that was allocated and not released, and the part of it that holds counters of captures.
        self._kept_bytes = self._captured_bytes = 0
        # The unused rest of the piece from which counters of captures are cut.
        self._rest = _NONE
        self._lock = threading.Lock()

    def take(self, stream: int, workspace_bytes: int, counter_bytes: int) -> tuple[int, int] | None:
        """Return addresses of a workspace and of zeroed counters for this thread's calls on the stream.

        They have at least these sizes. None if the limit would be exceeded, or if the stream cannot be identified.
        Raises LaunchError if memory is exhausted.
        """
        rooms = self._rooms()
        room = rooms.eager.get(stream)
        if (room is None or room.number) and (room := self._room(rooms, stream)) is None:
            return None
        (workspace, size), (counters, counted) = room.pieces
        if size < workspace_bytes or counted < counter_bytes:
            for is_counters, needed in ((False, workspace_bytes), (True, counter_bytes)):
                if room.pieces[is_counters][1] < needed and not self._grows(rooms, stream, is_counters, needed):
                    return None
            (workspace, _), (counters, _) = room.pieces
        return workspace if workspace_bytes else 0, counters if counter_bytes else 0

    def lasts(self, stream: int) -> bool:
        """Return True if this thread's pieces on the stream stay valid until it asks for more.

        False for a stream that may end.
        """
        room = self._rooms().eager.get(stream)
        return room is not None and not room.number

    def counters(self, stream: int, capture: int, counter_bytes: int) -> int | None:
        """Return the address of zeroed counters for this thread's calls in a graph capture; None beyond the limit."""
        if not counter_bytes:
            return 0
        known, key = self._rooms().captured, (stream, capture)
        address, size = known.get(key, _NONE)
        if size < counter_bytes:
            if (piece := self._cut(counter_bytes)) is None:
                return None
            if len(known) >= _MOST_CAPTURES:
                del known[next(iter(known))]
            address, _ = known[key] = piece
        return address

    def drop(self, stream: int) -> None:
        """Drop this thread's counters on the stream: after a failed call they may not be zero."""
        rooms = self._rooms()
        for key in [key for key in rooms.captured if key[0] == stream]:
            del rooms.captured[key]
        forget_workspaces()
        if (room := rooms.eager.get(stream)) is not None:
            spoiled, room.pieces[1] = room.pieces[1], _NONE
            self._give_back([spoiled])

    def kept(self) -> WorkspaceUsage:
        """Return how much memory is kept now."""
        with self._lock:
            return WorkspaceUsage(self._kept_bytes, self._most_bytes, self._free_bytes(), self._captured_bytes)

    def _free_bytes(self) -> int:
        return sum(size for pieces in list(self._free.values()) for _, size in pieces)

    def _rooms(self) -> _ThreadPieces:
        try:
            rooms: _ThreadPieces = self._thread.rooms
        except AttributeError:
            rooms = self._thread.rooms = _ThreadPieces(self._free)
        return rooms

    def _room(self, rooms: _ThreadPieces, stream: int) -> _StreamPieces | None:
        """Return this thread's pieces on the stream; new ones if the handle belonged to another stream before."""
        number, known = self._stream_number(stream), rooms.eager.get(stream)
        if number is not None and known is not None and known.number == number:
            return known
        if known is not None:
            del rooms.eager[stream]
            with self._lock:
                ended = [key for key in self._free if key[0] == stream and key[1] not in (0, number)]
                left = [piece for key in ended for piece in self._free.pop(key)]
            self._give_back(known.pieces + left)
        if number is None:
            return None
        room = rooms.eager[stream] = _StreamPieces(number)
        return room

    def _grows(self, rooms: _ThreadPieces, stream: int, is_counters: bool, needed: int) -> bool:
        """Give this thread a larger piece on the stream. Return False if the limit would be exceeded."""
        room = rooms.eager[stream]
        key = stream, room.number, is_counters
        piece = self._left(key, needed)
        if piece is None and self._reserved(size := class_bytes(needed), rooms, stream):
            try:
                piece = self._memory(size), size
            except BaseException:
                with self._lock:
                    self._kept_bytes -= size
                raise
        if piece is None:
            return False
        outgrown, room.pieces[is_counters] = room.pieces[is_counters], piece
        if outgrown[1]:
            # The thread's later calls take the larger piece; the old one is free for another thread on the stream.
            forget_workspaces()
            with self._lock:
                self._free.setdefault(key, []).append(outgrown)
        return True

    def _left(self, key: _Key, needed: int) -> Piece | None:
        """Return the smallest free piece of the stream that is large enough; None if there is none."""
        with self._lock:
            free = self._free.get(key, [])
            found = min((piece for piece in free if piece[1] >= needed), key=lambda piece: piece[1], default=None)
            if found is not None:
                free.remove(found)
            return found

    def _reserved(self, size: int, rooms: _ThreadPieces, stream: int) -> bool:
        """Count `size` more bytes as kept, freeing dispensable pieces if necessary; return False beyond the limit."""
        given_up: list[Piece] = []
        with self._lock:
            own = (piece for other, room in rooms.eager.items() if other != stream for piece in room.pieces)
            dispensable = self._free_bytes() + sum(each for _, each in own)
            if self._kept_bytes - dispensable + size > self._most_bytes:
                return False
            goes = self._dispensable(rooms, stream)
            while self._kept_bytes + size > self._most_bytes and (pieces := next(goes, None)) is not None:
                self._kept_bytes -= sum(each for _, each in pieces)
                given_up += pieces
            self._kept_bytes += size
        self._released(given_up)
        return True

    def _dispensable(self, rooms: _ThreadPieces, stream: int) -> Iterator[list[Piece]]:
        """Yield pieces that may be freed: pieces without an owner, then this thread's pieces on other streams."""
        for key in list(self._free):
            while pieces := self._free.get(key):
                yield [pieces.pop(0)]
        forget_workspaces()
        for other in [each for each in rooms.eager if each != stream]:
            yield rooms.eager.pop(other).pieces

    def _give_back(self, pieces: list[Piece]) -> None:
        with self._lock:
            self._kept_bytes -= sum(size for _, size in pieces)
        self._released(pieces)

    def _released(self, pieces: list[Piece]) -> None:
        for address, size in pieces:
            if size:
                # On a broken device releasing fails, and there is nothing to recover.
                with contextlib.suppress(LaunchError):
                    self._release(address)

    def _cut(self, needed: int) -> Piece | None:
        needed = -(-needed // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            address, left = self._rest
            if left < needed:
                left = max(needed, _LEAST_BYTES)
                captured = self._captured_bytes + left
                if captured > self._most_bytes // _OF_CAPTURES or self._kept_bytes + left > self._most_bytes:
                    return None
                address = self._memory(left)
                self._captured_bytes, self._kept_bytes = captured, self._kept_bytes + left
            self._rest = address + needed, left - needed
        return address, needed
