"""Feed: pulls candidates from an iterator in a thread of its own, since the iterator waits for the compile farm."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from genkern.gemm.records import Candidate

_CLOSE_WAIT_S = 5.0
# The thread pauses when the queue holds more than this many units. The consumer then need not wait for the thread. A
# longer queue would hold older choices: the producer chooses better once it has seen more measurements.
_AHEAD = 4


class CandidateFeed:
    """Hands out the items of an iterable, each a list of candidates that share binaries, and raises its errors.

    `close` stops the thread. If the iterable has a method `cancel`, it is called to release a thread that waits in it.
    A generator is closed in the thread in which it runs, so that its resources are released if the consumer ends early.
    """

    def __init__(self, units: Iterable[Sequence[Candidate]]) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._closed = threading.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._units = units
        self._thread = threading.Thread(target=self._pull, daemon=True)
        self._thread.start()

    def next(self, *, wait: bool) -> Sequence[Candidate] | None:
        """Return the next candidates; None at the end, or if there are none yet and `wait` is false.

        An error of the iterable is raised only if `wait` is true, after all earlier candidates have been handed out.
        """
        if not self._ended:
            try:
                item = self._queue.get(block=wait)
            except queue.Empty:
                return None
            if item is not None and not isinstance(item, BaseException):
                self._room.release()
                candidates: Sequence[Candidate] = item
                return candidates
            self._ended = True
            self._error = item
        if wait and self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Stop pulling; waits up to 5 s for the iterator to end."""
        self._ended = True
        self._closed.set()
        self._room.release()
        if (cancel := getattr(self._units, "cancel", None)) is not None:
            cancel()
        self._thread.join(_CLOSE_WAIT_S)

    def _pull(self) -> None:
        iterator = iter(self._units)
        try:
            for candidates in iterator:
                self._queue.put(candidates)
                self._room.acquire()
                if self._closed.is_set():
                    break
            self._queue.put(None)
        except BaseException as error:  # handed to the consumer, whatever it is
            self._queue.put(error)
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                close()
