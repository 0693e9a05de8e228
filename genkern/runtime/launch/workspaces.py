"""Workspaces and counters of the calls on one device: one of each for a stream of a thread, or for a graph capture.

Two threads that launch on one stream would each write over the partial sums of the other between two launches of a
call, and replays of two graphs may run at once: so neither shares. Counters are zero when they are made, and every call
leaves them zero.

What is kept comes from the driver, not from PyTorch's allocator. So it lies in no private pool: torch.compile's graph
trees warm up inside one, and refuse what stays alive there. A tensor for each call instead would cost an eager call
1.4 us of host time, and zeroing counters another launch. A call that goes into a graph takes a temporary tensor as
workspace, which is the graph's own, and costs a replay nothing; of its counters, a few KB, there is a set for each
capture, which stays: nobody says when the last replay has ended.

All that is kept of a device is at most MOST_BYTES. Beyond them goes first what belongs to nobody, then what the thread
has on other streams; a call for which that is not enough has temporary tensors. Sizes are of few classes, so that what
a thread outgrows, or leaves when it ends, serves others on the same stream, whose work comes after its own.

The default stream and those of PyTorch's pools live as long as the process. Others may end, and their handles come back
as those of new streams while the work of the old ones goes on: they are told apart by the driver's number for a stream,
which never comes back, asked at each call; what an ended one had is freed, which waits for its work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from genkern.errors import LaunchError
from genkern.runtime.launch.launcher import forget_workspaces

# Of a device: as much as four threads on four streams keep of 16 MiB each. A sixteenth of it for counters of captures.
MOST_BYTES = 2**28
_OF_CAPTURES = 16
# Captures of a thread that are known: the oldest goes when they have come and gone, its graph keeps the memory.
_MOST_CAPTURES = 64
_LEAST_BYTES = 2**16
# Sizes are powers of two up to this, and multiples of it beyond.
_STEP_BYTES = 2**24
_ALIGNMENT = 256

# Of memory: its address and its bytes.
Piece = tuple[int, int]
_NONE = 0, 0
# A stream's handle and number, and whether it is of counters.
_Key = tuple[int, int, bool]


def class_bytes(needed: int) -> int:
    """The size that is made where so much is needed."""
    if needed > _STEP_BYTES:
        return -(-needed // _STEP_BYTES) * _STEP_BYTES
    return max(_LEAST_BYTES, 1 << (needed - 1).bit_length())


@dataclass(frozen=True)
class Kept:
    """What is kept of a device: `bytes` in all, of `most_bytes`, among them `free_bytes` that belong to nobody, and
    `captured_bytes` of counters of graphs, which are never freed.
    """

    bytes: int
    most_bytes: int
    free_bytes: int
    captured_bytes: int


@dataclass
class _Room:
    """What a thread has on a stream; `number` tells the stream from others with its handle, 0: there are none."""

    number: int
    pieces: list[Piece] = field(default_factory=lambda: [_NONE, _NONE])


class _Rooms:
    """What one thread has on each stream; the next thread's when it ends."""

    def __init__(self, free: dict[_Key, list[Piece]]) -> None:
        self.eager: dict[int, _Room] = {}
        self.captured: dict[tuple[int, int], Piece] = {}
        self._free = free

    def __del__(self) -> None:
        # The system's thread may go on, and come back as another of Python's.
        forget_workspaces()
        for stream, room in self.eager.items():
            for is_counters, piece in enumerate(room.pieces):
                if piece[1]:
                    self._free.setdefault((stream, room.number, bool(is_counters)), []).append(piece)


class Workspaces:
    """`memory(bytes)` is the address of new memory on the device that is zero, outside of any pool, and stays until
    `release(address)`, which waits for whatever uses it.

    `stream_number(stream)` is 0 for a stream that never ends, another for each that may, and None where nobody knows.
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
        # All that was made and not released; of it, of captures.
        self._kept_bytes = self._captured_bytes = 0
        # What is left of the piece that captures' counters are cut from.
        self._rest = _NONE
        self._lock = threading.Lock()

    def take(self, stream: int, workspace_bytes: int, counter_bytes: int) -> tuple[int, int] | None:
        """Addresses of a workspace and of zeroed counters, at least so large, for calls of this thread on the stream.

        None where that would be more than is kept, or nobody can tell the stream from others. Raises LaunchError where
        there is no memory.
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
        """Whether what this thread has on the stream is its own until it asks for more: the stream never ends."""
        room = self._rooms().eager.get(stream)
        return room is not None and not room.number

    def counters(self, stream: int, capture: int, counter_bytes: int) -> int | None:
        """The address of zeroed counters for the calls of this thread that go into a graph by the stream; None where
        that would be more than is kept.
        """
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
        """Forget what this thread has on the stream: after a call that failed half way its counters are not zero."""
        rooms = self._rooms()
        for key in [key for key in rooms.captured if key[0] == stream]:
            del rooms.captured[key]
        forget_workspaces()
        if (room := rooms.eager.get(stream)) is not None:
            spoiled, room.pieces[1] = room.pieces[1], _NONE
            self._give_back([spoiled])

    def kept(self) -> Kept:
        """What is kept now."""
        with self._lock:
            return Kept(self._kept_bytes, self._most_bytes, self._free_bytes(), self._captured_bytes)

    def _free_bytes(self) -> int:
        return sum(size for pieces in list(self._free.values()) for _, size in pieces)

    def _rooms(self) -> _Rooms:
        try:
            rooms: _Rooms = self._thread.rooms
        except AttributeError:
            rooms = self._thread.rooms = _Rooms(self._free)
        return rooms

    def _room(self, rooms: _Rooms, stream: int) -> _Room | None:
        """This thread's on the stream, or a new one where that was another's with its handle."""
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
        room = rooms.eager[stream] = _Room(number)
        return room

    def _grows(self, rooms: _Rooms, stream: int, is_counters: bool, needed: int) -> bool:
        """Give this thread's room on the stream more; False where that would be more than is kept."""
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
            # The thread's other calls take the larger one from now on, and the next thread on the stream this one.
            forget_workspaces()
            with self._lock:
                self._free.setdefault(key, []).append(outgrown)
        return True

    def _left(self, key: _Key, needed: int) -> Piece | None:
        """What a thread has left on the stream, the smallest that is large enough."""
        with self._lock:
            free = self._free.get(key, [])
            found = min((piece for piece in free if piece[1] >= needed), key=lambda piece: piece[1], default=None)
            if found is not None:
                free.remove(found)
            return found

    def _reserved(self, size: int, rooms: _Rooms, stream: int) -> bool:
        """Count so much more as kept, once others have gone where it would be too much, if that helps."""
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

    def _dispensable(self, rooms: _Rooms, stream: int) -> Iterator[list[Piece]]:
        """What belongs to nobody, and then what this thread has on other streams."""
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
                # A device that is broken has nothing to give back.
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
