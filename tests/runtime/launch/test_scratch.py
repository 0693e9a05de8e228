"""Tests of genkern.runtime.launch.scratch: who has a workspace in common, and who must not."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass, field

from genkern.runtime.launch.scratch import Scratch


@dataclass
class Memory:
    """Tensors that are numbers: each has an address of its own."""

    made: list[tuple[int, bool]] = field(default_factory=list)

    def make(self, size: int, zero: bool) -> Piece:
        self.made.append((size, zero))
        return Piece(len(self.made) * 1024, size)


@dataclass(frozen=True)
class Piece:
    address: int
    size: int

    def numel(self) -> int:
        return self.size

    def data_ptr(self) -> int:
        return self.address


def test_calls_on_a_stream_share_what_is_large_enough() -> None:
    """Only a larger call makes anew; counters are made zero, workspaces are not."""
    memory = Memory()
    scratch = Scratch(memory.make)
    first = scratch.take(1, 0, 4096, 64)
    assert scratch.take(1, 0, 100, 4) == first
    larger = scratch.take(1, 0, 8192, 4)
    assert (larger[0] != first[0], larger[1]) == (True, first[1])
    assert memory.made == [(4096, False), (64, True), (8192, False)]


def test_streams_captures_and_threads_have_their_own() -> None:
    """Launches of two calls may be mixed on two streams, in two graphs, and from two threads on one stream."""
    scratch = Scratch(Memory().make)
    found = [scratch.take(stream, capture, 16, 16) for stream in (1, 2) for capture in (0, 5, 6)]
    thread = threading.Thread(target=lambda: found.append(scratch.take(1, 0, 16, 16)))
    thread.start()
    thread.join()
    assert len({address for pair in found for address in pair}) == 2 * len(found)


def test_counters_of_a_call_that_failed_are_not_used_again() -> None:
    """They may not be zero."""
    scratch = Scratch(Memory().make)
    first = scratch.take(1, 0, 16, 16)
    scratch.drop(1, 0)
    assert not set(scratch.take(1, 0, 16, 16)) & set(first)


def test_rooms_are_bounded() -> None:
    """Captures come and go."""
    scratch = Scratch(Memory().make)
    for capture in range(1000):
        scratch.take(1, capture, 16, 16)
    assert len(scratch._thread.rooms) <= 64


def test_a_thread_takes_no_others_room() -> None:
    """One that was given to a call which has not launched yet would be somebody else's memory by then."""
    memory = Memory()
    scratch = Scratch(memory.make)
    room = scratch.take(1, 0, 16, 16)
    ended: list[weakref.ref[Piece]] = []

    def work() -> None:
        for capture in range(200):
            scratch.take(1, capture, 16, 16)
        ended.append(weakref.ref(next(iter(scratch._thread.rooms.values()))[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert scratch.take(1, 0, 16, 16) == room
    gc.collect()
    assert ended[0]() is None
