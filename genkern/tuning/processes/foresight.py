"""Foresight: what can be told of a size before its turn, by a process that has nothing else to do.

Pruning a space and asking a model about what is left are a second of Python a size; in the driver, which feeds the
measured process meanwhile, they would take turns with that. The process is forked, so that it knows the families,
formats and GPUs that the run knows, and ends with whoever asks, however that ends, since the pipe between them does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.search.strategy import Foresees
from genkern.space.prune import Pruned, prune
from genkern.space.shares import Shares
from genkern.space.space import Space
from genkern.tuning.processes.forked import serve

_END_S = 5.0


@dataclass(frozen=True)
class Foreseen:
    """What pruning left of a size's space, and what the strategy made of that before its turn (`Task.foreseen`)."""

    pruned: Pruned
    model: object = None


def foreseen(
    space: Space, problem: GemmProblem, gpu: Gpu, foresees: Foresees | None, shares: Shares | None = None
) -> Foreseen:
    """Prune, and ask `foresees` about what is left, here and now; where others have `shares` in it, it may still be
    under way when this returns.
    """
    pruned = prune(space, problem, gpu, shares)
    if foresees is None or not pruned.kept:
        return Foreseen(pruned)
    return Foreseen(pruned, foresees(problem, pruned.kept, gpu, shares))


class Foresight:
    """The process, and the way to it; any thread may ask, one is answered at a time.

    Where it is lost, whoever asks does without.
    """

    def __init__(self, foresees: Foresees | None, inherited: Sequence[Connection] = ()) -> None:
        """Fork; to be called before there are threads. `inherited` are the pipes to other such processes."""
        self._asking = threading.Lock()
        context = get_context("fork")
        self.pipe, theirs = context.Pipe()
        arguments = theirs, (*inherited, self.pipe), partial(_answer_to, foresees)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def of(self, space: Space, problem: GemmProblem, gpu: Gpu, foresees: Foresees | None) -> Foreseen:
        """As `foreseen`, in the process, with the function that it was forked with. Raises what that raises."""
        answer: object = None
        with self._asking, contextlib.suppress(EOFError, OSError):
            self.pipe.send((space, problem, gpu))
            answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Foreseen) else foreseen(space, problem, gpu, foresees)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join(_END_S)
        self.pipe.close()


@contextlib.contextmanager
def foresights(count: int, sizes: int, foresees: Foresees | None) -> Iterator[Sequence[Foresight | None]]:
    """So many, or None for each where no size comes after another; all have ended afterwards.

    To be called before there are threads.
    """
    if sizes < 2:
        yield [None] * count
        return
    with contextlib.ExitStack() as stack:
        found: list[Foresight] = []
        for _ in range(count):
            found.append(Foresight(foresees, [one.pipe for one in found]))
            stack.callback(found[-1].close)
        yield found


def _answer_to(foresees: Foresees | None, question: tuple[Space, GemmProblem, Gpu]) -> Foreseen:
    return foreseen(*question, foresees)
