"""Foresight: a process that prunes the next size and predicts its times while another size is measured.

Both take about a second of Python per size. In the driver they would compete for the interpreter with the thread that
feeds the measured process. The process is forked, so it knows the run's families, formats and GPUs. It ends when the
driver ends, even by a crash, because the pipe between them closes then.
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
    """The pruned space of a size, and the result of the strategy's `foresee` for it (`Task.foreseen`).

    model: None if the strategy has no such function, or pruning left no config
    """

    pruned: Pruned
    model: object = None


def foreseen(
    space: Space, problem: GemmProblem, gpu: Gpu, foresees: Foresees | None, shares: Shares | None = None
) -> Foreseen:
    """Prune the space in this process, and call `foresees` with the configs that are left.

    With `shares`, other processes compute parts of both, and parts of the model may still be computed when this
    returns.
    """
    pruned = prune(space, problem, gpu, shares)
    if foresees is None or not pruned.kept:
        return Foreseen(pruned)
    return Foreseen(pruned, foresees(problem, pruned.kept, gpu, shares))


class Foresight:
    """The process and its pipe. Any thread may call `of`; calls are answered one at a time.

    If the process is lost, the calling thread computes the answer itself.
    """

    def __init__(self, foresees: Foresees | None, inherited: Sequence[Connection] = ()) -> None:
        """Fork the process; call this before any thread starts. `inherited` are the pipes to other such processes."""
        self._asking = threading.Lock()
        context = get_context("fork")
        self.pipe, theirs = context.Pipe()
        arguments = theirs, (*inherited, self.pipe), partial(_answer_to, foresees)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def of(self, space: Space, problem: GemmProblem, gpu: Gpu, foresees: Foresees | None) -> Foreseen:
        """Return `foreseen` as computed by the process, or here with `foresees` if the process is lost.

        The process uses the function that it was forked with. Raises the exceptions of `foreseen`.
        """
        answer: object = None
        with self._asking, contextlib.suppress(EOFError, OSError):
            self.pipe.send((space, problem, gpu))
            answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Foreseen) else foreseen(space, problem, gpu, foresees)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join(_END_S)
        self.pipe.close()


@contextlib.contextmanager
def foresights(count: int, sizes: int, foresees: Foresees | None) -> Iterator[Sequence[Foresight | None]]:
    """Context with `count` processes that end with it; `count` times None if there are fewer than two `sizes`.

    Call this before any thread starts.
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
