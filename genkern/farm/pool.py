"""The farm's pool of worker processes: joblib's, which Ctrl-C passes by and which ends at once with all that it does.

Imported where something is to be compiled, since joblib takes as long to import as all of genkern.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from multiprocessing import resource_tracker as multiprocessing_tracker
from pathlib import Path
from typing import Any, TypeVar

from joblib.externals.loky import get_reusable_executor, process_executor
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.process_executor import ShutdownExecutorError, TerminatedWorkerError

from genkern.farm.cache import Failure
from genkern.farm.compiler import CompileJob, end_with, make_ready, run_job
from genkern.gemm.records import Binary

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# A worker was killed from outside, or the pool was ended.
WorkerDiedError = (TerminatedWorkerError, ShutdownExecutorError)
# Workers without work end after so many seconds, as joblib has it.
_IDLE_S = 300


def begin(job: CompileJob, workers: int) -> Future[Binary | Failure]:
    """Have one of so many processes do the job; its result raises one of WorkerDiedError where a process is gone.

    Raises that itself where it was known before; the next job has new processes then. A single one is this process,
    in the thread that calls: the result is there then.
    """
    future: Future[Binary | Failure]
    if workers == 1:
        future = Future()
        try:
            future.set_result(run_job(job, os.getpid()))
        except Exception as error:
            future.set_exception(error)
        return future
    with children_ignore_interrupts():
        future = executor(workers).submit(run_job, job, os.getpid())
        return future


def warm(workers: int) -> None:
    """Have so many processes begin, each with a compile process that has imported Triton."""
    with children_ignore_interrupts():
        for _ in range(workers):
            executor(workers).submit(make_ready, os.getpid())


def executor(workers: int) -> Any:
    """joblib's, whose workers end with this process even before they have their first job."""
    return get_reusable_executor(max_workers=workers, timeout=_IDLE_S, initializer=end_with, initargs=(os.getpid(),))


def each(function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int) -> Iterator[_Result]:
    """What the function makes of each item, in their order, in so many processes; one is this process."""
    if workers == 1:
        yield from map(function, items)
        return
    with children_ignore_interrupts():
        futures = [executor(workers).submit(function, item) for item in items]
    for future in futures:
        yield future.result()


def end() -> None:
    """End all workers at once, with whatever they are doing. The next results come from new ones."""
    get_reusable_executor(reuse=True).shutdown(kill_workers=True)


def _kill(worker: Any) -> None:
    """End a worker, its compile process and the assembler that this may be running."""
    # Of all its threads: the compile process is a child of the one that forks.
    threads = Path(f"/proc/{worker.pid}/task")
    with contextlib.suppress(OSError):
        for thread in os.listdir(threads):
            with contextlib.suppress(OSError):
                for child in (threads / thread / "children").read_text().split():
                    os.killpg(int(child), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)
    worker.join()


# loky's own needs psutil or the program pgrep, which small containers lack. Without either it calls Popen.kill, which
# loky's Popen has not (joblib 1.6.0): its thread dies of that, and a run that is stopped hangs for ever. Neither joblib
# nor loky takes another way to end workers. psutil as a dependency would do as well, and be one more compiled package
# for every container and every Python, for what is eight lines here; where it is installed this stays in its place, so
# that a run ends alike everywhere. tests/farm and tests/command/test_interrupts.py end runs through it.
process_executor.kill_process_tree = _kill


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Processes started in here do not see Ctrl-C, which a terminal sends to them too: `close` ends them.

    They inherit the mask of blocked signals. The trackers of shared resources unblock the signal for this
    thread when they start, so they go first; what they say of a run that was stopped helps nobody.
    """
    with _environment("PYTHONWARNINGS", "ignore:resource_tracker"):
        loky_tracker.ensure_running()
        multiprocessing_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
