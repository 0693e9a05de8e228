"""Tests of profiling/feed.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from genkern.gemm.config import Config
from genkern.gemm.records import Candidate
from genkern.profiling.candidate_feed import CandidateFeed

WAIT_S = 10.0


def candidate(number: int) -> Candidate:
    return Candidate(Config("tiled", number, 16, 16), ())


def test_candidates_come_in_order_and_then_the_end() -> None:
    """Every one once; at the end None, as often as one asks."""
    feed = CandidateFeed((candidate(number),) for number in range(1, 6))
    assert [feed.next(wait=True) for _ in range(5)] == [(candidate(number),) for number in range(1, 6)]
    assert feed.next(wait=True) is None
    assert feed.next(wait=False) is None


def test_a_feed_that_is_not_ready_gives_none_without_waiting() -> None:
    """While the iterator has nothing ready; what it yields later is not lost."""
    ready = threading.Event()

    def slow() -> Iterator[Sequence[Candidate]]:
        assert ready.wait(WAIT_S)
        yield (candidate(1),)

    feed = CandidateFeed(slow())
    assert feed.next(wait=False) is None
    ready.set()
    assert feed.next(wait=True) == (candidate(1),)


def test_an_error_comes_after_what_came_before_it() -> None:
    """It is raised to a consumer that waits, again and again; one that does not wait still has work of its own."""

    def failing() -> Iterator[Sequence[Candidate]]:
        yield (candidate(1),)
        raise OSError("disk full")

    feed = CandidateFeed(failing())
    assert feed.next(wait=True) == (candidate(1),)
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            feed.next(wait=True)
        assert feed.next(wait=False) is None


def test_few_wait_for_a_slow_consumer() -> None:
    """Who yields them knows later what is wanted most: at the most five are taken that nobody has asked for yet."""
    yielded: list[int] = []

    def many() -> Iterator[Sequence[Candidate]]:
        for number in range(1, 101):
            yielded.append(number)
            yield (candidate(number),)

    feed = CandidateFeed(many())
    for number in range(1, 101):
        assert feed.next(wait=True) == (candidate(number),)
        assert len(yielded) <= number + 5
    assert feed.next(wait=True) is None


def test_closing_tells_who_waits_to_let_go() -> None:
    """A thread that waits for the farm comes back at once where what it waits in can be cancelled."""

    class Waiting:
        def __init__(self) -> None:
            self.let_go = threading.Event()
            self.waits = threading.Event()

        def __iter__(self) -> Iterator[Sequence[Candidate]]:
            return self

        def __next__(self) -> Sequence[Candidate]:
            self.waits.set()
            assert self.let_go.wait(WAIT_S)
            raise StopIteration

        def cancel(self) -> None:
            self.let_go.set()

    waiting = Waiting()
    feed = CandidateFeed(waiting)
    assert waiting.waits.wait(WAIT_S)
    started_s = time.monotonic()
    feed.close()
    assert time.monotonic() - started_s < 1.0


def test_closing_closes_the_generator_in_its_own_thread() -> None:
    """Even when the consumer is far behind: what the generator holds is given back."""
    closed_in: list[str] = []
    started = threading.Event()

    def endless() -> Iterator[Sequence[Candidate]]:
        try:
            while True:
                started.set()
                yield (candidate(1),)
        finally:
            closed_in.append(threading.current_thread().name)

    feed = CandidateFeed(endless())
    assert started.wait(WAIT_S)
    feed.close()
    assert len(closed_in) == 1
    assert closed_in != [threading.current_thread().name]
    assert feed.next(wait=True) is None


def test_a_list_can_be_fed_too() -> None:
    """What has no close is not closed."""
    feed = CandidateFeed([(candidate(1),)])
    assert feed.next(wait=True) == (candidate(1),)
    feed.close()
