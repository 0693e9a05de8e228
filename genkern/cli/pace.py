"""`Pace`: limits how often a growing file is rewritten, so that writing takes a small share of a run's time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

# Largest share of a run's time that writing may take. Results that are not written yet are in the journal.
MOST_OF_TIME = 0.02


class Pace:
    """The first write is due at once; another, when the last took at most MOST_OF_TIME of the time since it began.

    The time of a write grows with the number of rows, and so does the wait for the next write. The share of the run's
    time is therefore bounded, however many rows there are. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")

    @property
    def due(self) -> bool:
        return self._clock() >= self._next_s

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Context in which the file is written; its duration determines when the next write is due."""
        started_s = self._clock()
        yield
        ended_s = self._clock()
        self._next_s = ended_s + (ended_s - started_s) * (1 / MOST_OF_TIME - 1)
