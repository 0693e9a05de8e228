"""Tests of genkern.runtime.launch.workspaces: who has a workspace in common, and who must not."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from genkern.runtime.launch.workspaces import Workspaces


@dataclass
class Memory:
    """Pieces that begin at multiples of 2^30."""

    made: list[int] = field(default_factory=list)

    def make(self, size: int) -> int:
        self.made.append(size)
        return len(self.made) << 30


def in_a_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_calls_on_a_stream_share_what_is_large_enough() -> None:
    """Only a larger call makes anew, twice as much at least; nothing is made of what no call takes."""
    memory = Memory()
    workspaces = Workspaces(memory.make)
    first = workspaces.take(1, 2**20, 64)
    assert workspaces.take(1, 100, 4) == first
    larger = workspaces.take(1, 2**20 + 1, 4)
    assert (larger[0] != first[0], larger[1]) == (True, first[1])
    assert memory.made == [2**20, 2**16, 2**21]
    assert workspaces.take(2, 0, 0) == (0, 0)
    assert len(memory.made) == 3


def test_streams_captures_and_threads_have_their_own() -> None:
    """Launches of two calls may be mixed on two streams, in two graphs, and from two threads on one stream."""
    workspaces = Workspaces(Memory().make)
    found = [address for stream in (1, 2) for address in workspaces.take(stream, 16, 16)]
    found += [workspaces.counters(stream, capture, 16) for stream in (1, 2) for capture in (5, 6)]
    in_a_thread(lambda: found.extend((*workspaces.take(1, 16, 16), workspaces.counters(1, 5, 16))))
    assert len(set(found)) == len(found) == 11


def test_counters_of_one_capture_are_one_set() -> None:
    """Calls of one graph on one stream follow each other; a larger one takes more; few pieces make many sets."""
    memory = Memory()
    workspaces = Workspaces(memory.make)
    first = workspaces.counters(1, 5, 4096)
    assert workspaces.counters(1, 5, 100) == first
    assert workspaces.counters(1, 5, 5000) != first
    cut = sorted(workspaces.counters(1, capture, 1000) for capture in range(10, 50))
    assert all(later - former >= 1000 and later % 256 == 0 for former, later in itertools.pairwise(cut))
    assert len(memory.made) == 1
    assert workspaces.counters(1, 99, 0) == 0


def test_counters_of_a_call_that_failed_are_not_used_again() -> None:
    """They may not be zero; partial sums need not be."""
    workspaces = Workspaces(Memory().make)
    first, captured = workspaces.take(1, 16, 16), workspaces.counters(1, 5, 16)
    workspaces.drop(1)
    again = workspaces.take(1, 16, 16)
    assert (again[0] == first[0], again[1] == first[1]) == (True, False)
    assert workspaces.counters(1, 5, 16) != captured


def test_a_capture_that_is_long_over_is_forgotten() -> None:
    """They come and go: one that is remembered gets its counters again, one that was forgotten gets others."""
    workspaces = Workspaces(Memory().make)
    first = workspaces.counters(1, 1, 16)
    assert workspaces.counters(1, 1, 16) == first
    for capture in range(2, 1000):
        workspaces.counters(1, capture, 16)
    assert workspaces.counters(1, 1, 16) != first


def test_a_thread_that_ends_leaves_what_it_had() -> None:
    """To the next one on the same stream, whose launches come after its own; to no other stream, and to one thread."""
    memory = Memory()
    workspaces = Workspaces(memory.make)
    found: list[tuple[int, int]] = []
    for stream in (1, 1, 2):
        in_a_thread(lambda stream=stream: found.append(workspaces.take(stream, 16, 16)))  # type: ignore[misc]
    assert found[0] == found[1] != found[2]
    both = [workspaces.take(1, 16, 16)]
    in_a_thread(lambda: both.append(workspaces.take(1, 16, 16)))
    assert both[0] == found[0] != both[1]


def test_what_is_too_small_stays() -> None:
    """For whom it is enough."""
    workspaces = Workspaces(Memory().make)
    found: list[tuple[int, int]] = []
    for size in (16, 2**20, 16):
        in_a_thread(lambda size=size: found.append(workspaces.take(1, size, 0)))  # type: ignore[misc]
    assert found[1] != found[0] == found[2]
