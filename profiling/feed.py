"""Feed: candidates pulled from an iterator in a thread of its own, since the farm behind it makes one wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Any

from genkern.gemm.records import Candidate

_CLOSE_WAIT_S = 5.0


class Feed:
    """Hands out what an iterable yields, as it comes, and raises what it raises.

    The iterable is never kept waiting: the farm behind it works for one device at a time, and the others would wait
    for this one's measurements too. What waits here is held by its job anyway.

    `close` stops the pulling and closes a generator, in the thread in which it runs, so that whatever it holds
    (a farm's workers, a lock) is given back when the consumer ends early.
    """

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._pull, args=(candidates,), daemon=True)
        self._thread.start()

    def next(self, *, wait: bool) -> Candidate | None:
        """The next candidate; None at the end, or when there is none yet and `wait` is false.

        The iterable's error is raised to a consumer that waits: it has then dealt with what came before.
        """
        if not self._ended:
            try:
                item = self._queue.get(block=wait)
            except queue.Empty:
                return None
            if isinstance(item, Candidate):
                return item
            self._ended = True
            self._error = item
        if wait and self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Stop; waits up to 5 s for the iterator to come to rest."""
        self._ended = True
        self._closed.set()
        self._thread.join(_CLOSE_WAIT_S)

    def _pull(self, candidates: Iterable[Candidate]) -> None:
        iterator = iter(candidates)
        try:
            for candidate in iterator:
                if self._closed.is_set():
                    break
                self._queue.put(candidate)
            self._queue.put(None)
        except BaseException as error:  # handed to the consumer, whatever it is
            self._queue.put(error)
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                close()
