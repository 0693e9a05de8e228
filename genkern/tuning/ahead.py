"""Ahead: sizes that are prepared while another one is being measured, each in a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from genkern.gemm.problem import GemmProblem
from genkern.tuning.prepared import Prepared

# Preparing is Python, and whoever feeds the measured process meanwhile is too: so soon, in seconds, may the one take
# turns with the other. On a host of 2 cores, with a process that answers every 0.4 ms, preparing a size of 7,000
# configs made 10 % fewer answers with Python's own 5 ms, and no fewer with this.
_TURN_S = 0.001


class Ahead:
    """Sizes on their way to their turn. Any thread may begin and forget them, the one that measures takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_the_way: dict[GemmProblem, _OnTheWay] = {}

    def begin(self, problem: GemmProblem, make: Callable[[], Prepared]) -> None:
        """Have `make` prepare the problem, which it will until `take` or `forget`."""
        sys.setswitchinterval(min(_TURN_S, sys.getswitchinterval()))
        with self._lock:
            self._on_the_way[problem] = _OnTheWay(make)

    def take(self, problem: GemmProblem) -> Prepared | None:
        """What was prepared, once it is; None where nobody began. Raises what ended the preparation."""
        with self._lock:
            on_the_way = self._on_the_way.pop(problem, None)
        return None if on_the_way is None else on_the_way.result()

    def come_forward(self) -> None:
        """The farm is theirs as well as that of the size that is being measured."""
        with self._lock:
            on_the_way = list(self._on_the_way.values())
        for each in on_the_way:
            each.come_forward()

    def forget(self, problem: GemmProblem | None = None, *, wait: bool = False) -> None:
        """The problem (None: each) is not wanted here: what was prepared goes away, at once or when it is there.

        With `wait` it has gone when this returns.
        """
        with self._lock:
            gone = [each for each in list(self._on_the_way) if problem in (None, each)]
            on_the_way = [self._on_the_way.pop(each) for each in gone]
        for each in on_the_way:
            each.forget(wait=wait)


class _OnTheWay:
    """One size that is being prepared, or waits for its turn."""

    def __init__(self, make: Callable[[], Prepared]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._error: BaseException | None = None
        self._is_behind, self._is_unwanted = True, False
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    def result(self) -> Prepared:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._prepared is not None
        return self._prepared

    def come_forward(self) -> None:
        with self._lock:
            self._is_behind = False
            if self._prepared is not None:
                self._prepared.stand(behind=False)

    def forget(self, *, wait: bool) -> None:
        with self._lock:
            self._is_unwanted = True
            if self._prepared is not None:
                self._prepared.close()
        if wait:
            self._thread.join()

    def _prepare(self) -> None:
        try:
            prepared = self._make()
        except BaseException as error:  # told when its turn comes, whatever it is
            self._error = error
            return
        with self._lock:
            self._prepared = prepared
            if self._is_unwanted:
                prepared.close()
            elif not self._is_behind:
                prepared.stand(behind=False)
