"""Pace: how often a file that grows is written anew, so that all the writing stays a small share of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

# Of the time between the end of one writing and the end of the next; what is not written yet is in the journal.
MOST_OF_TIME = 0.02


class Pace:
    """Writing is due when it last took at most MOST_OF_TIME of the time that has passed since; at first it is.

    With n rows one writing takes time and bytes in proportion to n, and so does the wait for the next: a run's writing
    is a share of its time, however many rows it comes to. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")

    @property
    def due(self) -> bool:
        return self._clock() >= self._next_s

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write in the block."""
        started_s = self._clock()
        yield
        ended_s = self._clock()
        self._next_s = ended_s + (ended_s - started_s) * (1 / MOST_OF_TIME - 1)
