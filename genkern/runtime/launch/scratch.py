"""Workspaces and counters of the calls on one device: one of each for a stream of a thread, or for a graph capture.

Two threads that launch on one stream would each write over the partial sums of the other between two launches of a
call, and replays of two graphs may run at once: so neither shares. Counters are zero when they are made, and every call
leaves them zero.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

# Rooms of a thread that are kept: the oldest goes when captures have come and gone. A graph that was captured with it
# keeps its memory, since that is the graph's own.
_MOST_ROOMS = 64

# Stream, and number of the graph capture (0: none).
Key = tuple[int, int]


class _Thread(threading.local):
    """A thread's rooms, which end with it: nobody else takes one away between its being given and the launches."""

    def __init__(self) -> None:
        self.rooms: dict[Key, list[Any]] = {}


class Scratch:
    """`make(bytes, zero)` is a new tensor of bytes on the device, for the current stream, zeroed if asked."""

    def __init__(self, make: Callable[[int, bool], Any]) -> None:
        self._make = make
        self._thread = _Thread()

    def take(self, stream: int, capture: int, workspace_bytes: int, counter_bytes: int) -> tuple[int, int]:
        """Addresses of a workspace and of zeroed counters, at least so large, for calls of this thread on the stream.

        While a graph is captured they come from its own memory, so that nothing is allocated when it is replayed.
        """
        rooms, key = self._thread.rooms, (stream, capture)
        room = rooms.get(key)
        if room is None:
            if len(rooms) >= _MOST_ROOMS:
                del rooms[next(iter(rooms))]
            room = rooms[key] = [None, None]
        for place, (needed, zero) in enumerate(((workspace_bytes, False), (counter_bytes, True))):
            if room[place] is None or room[place].numel() < needed:
                room[place] = self._make(max(needed, 16), zero)
        return room[0].data_ptr(), room[1].data_ptr()

    def drop(self, stream: int, capture: int) -> None:
        """Forget what this thread has on the stream: after a call that failed half way its counters are not zero."""
        self._thread.rooms.pop((stream, capture), None)
