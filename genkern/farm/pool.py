"""The farm's pool of worker processes: joblib's, which Ctrl-C passes by and which ends at once with all that it does.

Imported where something is to be compiled, since joblib takes as long to import as all of genkern.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing import resource_tracker as multiprocessing_tracker
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from joblib.externals.loky import get_reusable_executor, process_executor, reusable_executor
from joblib.externals.loky.backend import fork_exec
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.process_executor import ShutdownExecutorError, TerminatedWorkerError

from genkern.errors import MachineError, machine_faults_told
from genkern.farm.cache import Failure
from genkern.farm.compiler import CompileJob, end_with, make_ready, run_job
from genkern.gemm.records import Binary
from genkern.python_child import child_environment, code_argument, module_argv

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# A worker was killed from outside, or the pool was ended.
WorkerDiedError = (TerminatedWorkerError, ShutdownExecutorError)
# Workers without work end after so many seconds, as joblib has it.
_IDLE_S = 300
# Of what workers printed, the end that is looked at.
_MOST_SAID = 16 * 1024
# In the environment of this pool's workers, by which their start is told from that of other pools of loky.
_MARK = {"STARTED_BY_GENKERN": "1"}


def begin(job: CompileJob, workers: int) -> Future[Binary | Failure]:
    """Submits a job to one of `workers` processes and returns its future, which raises one of WorkerDiedError if a
    process of the pool dies.

    Raises WorkerDiedError itself if one has died before; the next call starts new processes. With one worker the job
    runs in this process, in the calling thread, and the future is done. Raises MachineError if no process can start.
    """
    future: Future[Binary | Failure]
    if workers == 1:
        future = Future()
        try:
            future.set_result(run_job(job, os.getpid()))
        except Exception as error:
            future.set_exception(error)
        return future
    with _starting():
        future = executor(workers).submit(run_job, job, os.getpid())
        return future


def warm(workers: int) -> list[Future[object]]:
    """Start `workers` processes, each with a compile process that has imported Triton.

    Returns a future for each, which ends when one of them is ready. Raises MachineError.
    """
    return [ready(workers) for _ in range(workers)]


def ready(workers: int) -> Future[object]:
    """Returns a future that ends when one of `workers` processes has a compile process. Raises MachineError."""
    with _starting():
        future: Future[object] = executor(workers).submit(_make_ready, os.getpid())
    return future


def _make_ready(driver_pid: int) -> None:
    # A compile process cannot be sent back.
    make_ready(driver_pid)


def last_words() -> str:
    """The last line that a worker printed, which says why it ended; "" if none printed anything."""
    if _output is None:
        return ""
    size = os.fstat(_output).st_size
    said = os.pread(_output, _MOST_SAID, max(0, size - _MOST_SAID)).decode("utf-8", "replace")
    lines = [line.strip() for line in said.splitlines() if line.strip(" -")]
    return lines[-1] if lines else ""


def executor(workers: int) -> Any:
    """Returns joblib's pool; its workers end with this process, even before they have their first job."""
    return get_reusable_executor(
        max_workers=workers, timeout=_IDLE_S, initializer=end_with, initargs=(os.getpid(),), env=_MARK
    )


def each(function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int) -> Iterator[_Result]:
    """Yields `function(item)` for each item, in order, computed by `workers` processes; one worker is this process.

    Raises MachineError if a process cannot start, or dies.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with _starting():
        futures = [executor(workers).submit(function, item) for item in items]
    for future in futures:
        try:
            result = future.result()
        except WorkerDiedError as error:
            raise MachineError(f"a compile worker died: {last_words() or error}; try fewer --jobs") from error
        yield result


def end() -> None:
    """End all workers at once, with whatever they are doing. The next results come from new ones."""
    pool = get_reusable_executor(reuse=True)
    workers = list((pool._processes or {}).values())
    # The thread that ends them may have been refused by the machine.
    with contextlib.suppress(RuntimeError):
        pool.shutdown(kill_workers=True)
    for worker in workers:
        if worker.is_alive():
            _kill(worker)


def has_lost_its_thread() -> bool:
    """Whether the thread that hands jobs to the workers ended by an error: no job would ever end."""
    pool = reusable_executor._executor
    thread = None if pool is None else pool._executor_manager_thread
    if thread is None or thread.is_alive():
        return False
    return not (pool._flags.broken or pool._flags.shutdown)


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


# What all workers of this process print: a file in memory. A worker that cannot start says why there, and nothing of it
# gets among the results on standard output.
_output: int | None = None


def _start_worker(argv: list[str], keep_fds: Collection[int], env: Mapping[str, str] | None = None) -> int:
    """Start a worker as loky's fork_exec does, without the current folder on its sys.path. Returns its process id."""
    global _output
    if not env or _MARK.keys().isdisjoint(env):
        # A pool that the user's own program has.
        pid: int = _fork_exec(argv, keep_fds, env)
        return pid
    if _output is None:
        _output = os.memfd_create("genkern-workers")
    program = module_argv(*argv[2:]) if argv[1] == "-m" else argv
    process = subprocess.Popen(
        program,
        pass_fds=tuple(keep_fds),
        stdin=subprocess.DEVNULL,
        stdout=_output,
        stderr=_output,
        env={**child_environment(), **env},
    )
    # loky waits for it, by its number.
    process.returncode = 0
    return process.pid


# loky has no other way to say how its workers start.
_fork_exec = fork_exec.fork_exec
fork_exec.fork_exec = _start_worker


def _spawn_python(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Start `python ... -c CODE` as multiprocessing does, without the current folder on its sys.path."""
    program = [code_argument(part) if before == "-c" else part for before, part in zip(("", *args), args, strict=False)]
    return _spawnv_passfds(path, program, passfds)


_spawnv_passfds = multiprocessing.util.spawnv_passfds


def leave_current_folder_when_spawning() -> None:
    """From here on, processes that multiprocessing spawns do not have the current folder on their sys.path.

    For the command alone, which starts Dask's nodes so, and again when one is lost: a user's program may want it.
    """
    multiprocessing.util.spawnv_passfds = _spawn_python


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """For the start of workers: Ctrl-C passes them by. Raises MachineError if the machine refuses a process."""
    told = machine_faults_told("start compile workers", "try fewer --jobs, or a higher limit (ulimit -u -v -n)")
    with told, children_ignore_interrupts():
        yield


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Processes started in here do not see Ctrl-C, which a terminal sends to them too: `close` ends them.

    They inherit the mask of blocked signals. The trackers of shared resources unblock the signal for this
    thread when they start, so they go first; what they say of a run that was stopped helps nobody.
    """
    with (
        _environment("PYTHONWARNINGS", "ignore:resource_tracker"),
        _attribute(multiprocessing.util, "spawnv_passfds", _spawn_python),
    ):
        loky_tracker.ensure_running()
        multiprocessing_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _attribute(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


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
