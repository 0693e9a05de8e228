"""Crew: processes that share out what is to be known of a single size before anything of it can be compiled.

Cores have nothing else to do then, and whoever waits for the size waits for this. They are forked, so that they know
the families, formats and GPUs that the run knows, and nothing is imported twice; they end with whoever asks, however
that ends, since the pipes between them do.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from genkern.tuning.processes.forked import serve

Item = TypeVar("Item")
Result = TypeVar("Result")
_END_S = 5.0
# Of so many cores half compute, and not more than so many: their answers come through the pipes one after another.
_LEAST_CORES, _MOST = 8, 8


class Crew:
    """So many processes. One thread asks, for one list of items after another; who is lost is done without."""

    def __init__(self, count: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Fork; to be called before there are threads. `meanwhile` is called once, when all have something to do."""
        context = get_context("fork")
        self.count = count
        self._number = 0
        self._meanwhile = meanwhile
        self._processes = []
        self._pipes: list[Connection] = []
        for _ in range(count):
            pipe, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, (*self._pipes, pipe), _answer_to), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(pipe)
            self._processes.append(process)

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """What the function makes of each item, in their order. They are begun at once, as many as there are processes;
        whoever wants the results may do something else first. Function, items and results go through pipes; what the
        function raises is raised.
        """
        left = deque(enumerate(items))
        given: dict[Connection, int] = {}
        # Answers to what nobody waits for any more, since something was raised, have another number.
        self._number += 1
        for pipe in list(self._pipes):
            self._give(pipe, function, left, given)
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return self._results(function, items, left, given)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_END_S)
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _give(
        self,
        pipe: Connection,
        function: Callable[[Any], Any],
        left: deque[tuple[int, Any]],
        given: dict[Connection, int],
    ) -> None:
        if not left:
            return
        place, item = left.popleft()
        try:
            pipe.send((self._number, function, item))
            given[pipe] = place
        except OSError:
            self._pipes.remove(pipe)
            left.appendleft((place, item))

    def _results(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        left: deque[tuple[int, Item]],
        given: dict[Connection, int],
    ) -> Iterator[Result]:
        done: dict[int, Any] = {}
        for place in range(len(items)):
            while place not in done and given:
                for ready in wait(list(given)):
                    assert isinstance(ready, Connection)
                    try:
                        number, answer = ready.recv()
                    except (EOFError, OSError):
                        self._pipes.remove(ready)
                        left.appendleft((at := given.pop(ready), items[at]))
                        continue
                    if number == self._number:
                        done[given.pop(ready)] = answer
                        self._give(ready, function, left, given)
            found = done.pop(place) if place in done else function(items[place])
            if isinstance(found, Exception):
                raise found
            yield found


@contextlib.contextmanager
def crew_of(tuners: int, cores: int, meanwhile: Callable[[], object]) -> Iterator[Crew | None]:
    """A crew where there is one tuner, and cores that have nothing to do; it has ended afterwards.

    Each of several tuners has a process of its own, and they wait together.
    """
    if tuners > 1 or cores < _LEAST_CORES:
        yield None
        return
    crew = Crew(min(_MOST, cores // 2), meanwhile)
    try:
        yield crew
    finally:
        crew.close()


def _answer_to(question: tuple[int, Callable[[Any], object], Any]) -> tuple[int, object]:
    number, function, item = question
    try:
        return number, function(item)
    except Exception as error:
        return number, error
