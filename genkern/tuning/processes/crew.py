"""Crew: worker processes that share the computation needed before the first kernel of a size can be compiled.

The computation is pruning and the model's predictions; until it ends, no core has a compile to do. The processes are
forked, so they know the run's families, formats and GPUs, and import nothing again. They end when the process that uses
them ends, even by a crash, because their pipes close then.
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
# A crew needs at least _LEAST_CORES cores. It has half as many processes as there are cores, at most _MOST: more would
# not help, since their answers arrive through the pipes one after another.
_LEAST_CORES, _MOST = 8, 8


class Crew:
    """`count` processes, used by one thread at a time, for one list of items after another.

    The items of a process that is lost are computed by the remaining processes, or by the caller.
    """

    def __init__(self, count: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Fork the processes; call this before any thread starts.

        `meanwhile` is called once, after the processes have got their first items.
        """
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
        """Return an iterator over `function(item)` for all items, in their order.

        The processes begin before this returns, so the caller may do other work before it reads the results. Function,
        items and results must be picklable. An exception of the function is raised by the iterator.
        """
        left = deque(enumerate(items))
        given: dict[Connection, int] = {}
        # After an exception, answers to the abandoned list may still arrive; their number differs.
        self._number += 1
        for pipe in list(self._pipes):
            self._give(pipe, function, left, given)
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return self._results(function, items, left, given)

    def close(self) -> None:
        """Kill the processes."""
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
    """Context with a crew that ends with it; None with several tuners or fewer than `_LEAST_CORES` cores.

    Several tuners have a process each, which compute at the same time, so they need no crew.
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
