"""Workspaces and counters of the calls on one device: one of each for a stream of a thread, or for a graph capture.

Two threads that launch on one stream would each write over the partial sums of the other between two launches of a
call, and replays of two graphs may run at once: so neither shares. Counters are zero when they are made, and every call
leaves them zero.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

# Rooms that are kept: the oldest goes when threads and captures have come and gone. A graph that was captured with it
# keeps its memory, since that is the graph's own.
_MOST_ROOMS = 64

# Thread, stream, and number of the graph capture (0: none).
Key = tuple[int, int, int]


class Scratch:
    """`make(bytes, zero)` is a new tensor of bytes on the device, for the current stream, zeroed if asked."""

    def __init__(self, make: Callable[[int, bool], Any]) -> None:
        self._make = make
        self._rooms: dict[Key, list[Any]] = {}

    def take(self, stream: int, capture: int, workspace_bytes: int, counter_bytes: int) -> tuple[int, int]:
        """Addresses of a workspace and of zeroed counters, at least so large, for calls of this thread on the stream.

        While a graph is captured they come from its own memory, so that nothing is allocated when it is replayed.
        """
        key = get_ident(), stream, capture
        room = self._rooms.get(key)
        if room is None:
            if len(self._rooms) >= _MOST_ROOMS:
                self._rooms.pop(next(iter(self._rooms)), None)
            room = self._rooms[key] = [None, None]
        for place, (needed, zero) in enumerate(((workspace_bytes, False), (counter_bytes, True))):
            if room[place] is None or room[place].numel() < needed:
                room[place] = self._make(max(needed, 16), zero)
        return room[0].data_ptr(), room[1].data_ptr()

    def drop(self, stream: int, capture: int) -> None:
        """Forget what this thread has on the stream: after a call that failed half way its counters are not zero."""
        self._rooms.pop((get_ident(), stream, capture), None)
