"""The farm's pool of worker processes. It is joblib's, changed so that workers ignore Ctrl-C and can be killed at once.

Imported only if worker processes are needed, since joblib takes as long to import as all of genkern.
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

from genkern.compile.cache import Failure
from genkern.compile.compiler import CompileJob, end_with, ensure_compile_process, run_job
from genkern.errors import MachineError, reporting_machine_faults
from genkern.gemm.records import Binary
from genkern.python_child import child_environment, code_argument, module_argv

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# Raised if a worker was killed from outside, or the pool was shut down.
WorkerDiedError = (TerminatedWorkerError, ShutdownExecutorError)
# Idle workers end after this many seconds, which is joblib's default.
_IDLE_S = 300
# Bytes at the end of the workers' output that are searched for their last line.
_MOST_SAID = 16 * 1024
# An environment variable of this pool's workers, which distinguishes them from workers of other loky pools.
_MARK = {"STARTED_BY_GENKERN": "1"}


def submit(job: CompileJob, workers: int) -> Future[Binary | Failure]:
    """Submit a job to one of `workers` processes and return its future, which raises one of WorkerDiedError if a
    process of the pool dies.

    Raises WorkerDiedError itself if a process has died before; the next call then starts new processes. With one worker
    the job runs in this process, in the calling thread, and the returned future is done. Raises MachineError if no
    process can start.
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

    Returns one future per worker, which is done when a worker is ready. Raises MachineError.
    """
    return [ready(workers) for _ in range(workers)]


def ready(workers: int) -> Future[object]:
    """Return a future that is done when one of `workers` processes has a compile process. Raises MachineError."""
    with _starting():
        future: Future[object] = executor(workers).submit(_make_ready, os.getpid())
    return future


def _make_ready(driver_pid: int) -> None:
    # Returns nothing, since a compile process cannot be pickled.
    ensure_compile_process(driver_pid)


def last_output_line() -> str:
    """Return the last line that any worker printed, which usually says why it ended; "" if no worker printed a line."""
    if _output is None:
        return ""
    size = os.fstat(_output).st_size
    said = os.pread(_output, _MOST_SAID, max(0, size - _MOST_SAID)).decode("utf-8", "replace")
    lines = [line.strip() for line in said.splitlines() if line.strip(" -")]
    return lines[-1] if lines else ""


def executor(workers: int) -> Any:
    """Return joblib's pool. Its workers end with this process, even before they have had a job."""
    return get_reusable_executor(
        max_workers=workers, timeout=_IDLE_S, initializer=end_with, initargs=(os.getpid(),), env=_MARK
    )


def map_in_order(function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int) -> Iterator[_Result]:
    """Yield `function(item)` for each item, in order, computed by `workers` processes.

    If `workers` is 1, this process computes it.

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
            raise MachineError(f"a compile worker died: {last_output_line() or error}; try fewer --jobs") from error
        yield result


def end() -> None:
    """Kill all workers, whatever they are doing. The next job starts new ones."""
    pool = get_reusable_executor(reuse=True)
    workers = list((pool._processes or {}).values())
    # The machine may refuse the thread that ends the workers.
    with contextlib.suppress(RuntimeError):
        pool.shutdown(kill_workers=True)
    for worker in workers:
        if worker.is_alive():
            _kill(worker)


def has_lost_its_thread() -> bool:
    """Return True if the thread that hands jobs to the workers ended by an error, so that no job would ever end."""
    pool = reusable_executor._executor
    thread = None if pool is None else pool._executor_manager_thread
    if thread is None or thread.is_alive():
        return False
    return not (pool._flags.broken or pool._flags.shutdown)


def _kill(worker: Any) -> None:
    """Kill a worker, its compile process, and the assembler that this may be running."""
    # Look at all threads of the worker: the compile process is a child of the thread that forked it.
    threads = Path(f"/proc/{worker.pid}/task")
    with contextlib.suppress(OSError):
        for thread in os.listdir(threads):
            with contextlib.suppress(OSError):
                for child in (threads / thread / "children").read_text().split():
                    os.killpg(int(child), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)
    worker.join()


# loky's own function needs psutil or the program pgrep, which small containers lack. Without either it calls
# Popen.kill, which loky's Popen does not have (joblib 1.6.0): loky's thread dies of that, and a run that is stopped
# hangs for ever. Neither joblib nor loky accepts another way to end workers. Depending on psutil would add a compiled
# package for every container. The replacement is used even if psutil is installed, so that runs end the same way
# everywhere. tests/compile and tests/cli/test_interrupts.py end runs through it.
process_executor.kill_process_tree = _kill


# A file in memory with the output of all workers of this process. A worker that cannot start says why there, and its
# output does not get among the results on standard output.
_output: int | None = None


def _start_worker(argv: list[str], keep_fds: Collection[int], env: Mapping[str, str] | None = None) -> int:
    """Start a worker as loky's fork_exec does, without the current folder on its sys.path. Return its process id."""
    global _output
    if not env or _MARK.keys().isdisjoint(env):
        # A pool of the user's own program.
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
    # loky waits for the process by its id; without this, Popen would wait for it too.
    process.returncode = 0
    return process.pid


# loky offers no other way to change how its workers start.
_fork_exec = fork_exec.fork_exec
fork_exec.fork_exec = _start_worker


def _spawn_python(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Start `python ... -c CODE` as multiprocessing does, without the current folder on its sys.path."""
    program = [code_argument(part) if before == "-c" else part for before, part in zip(("", *args), args, strict=False)]
    return _spawnv_passfds(path, program, passfds)


_spawnv_passfds = multiprocessing.util.spawnv_passfds


def leave_current_folder_when_spawning() -> None:
    """Start processes that multiprocessing spawns without the current folder on their sys.path, from here on.

    Only the command calls this, since it starts Dask nodes by multiprocessing, and restarts lost ones. A user's program
    may rely on the default.
    """
    multiprocessing.util.spawnv_passfds = _spawn_python


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Context for starting workers, which then ignore Ctrl-C. Raises MachineError if the machine refuses a process."""
    told = reporting_machine_faults("start compile workers", "try fewer --jobs, or a higher limit (ulimit -u -v -n)")
    with told, children_ignore_interrupts():
        yield


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Context in which started processes ignore Ctrl-C, which a terminal sends to them too.

    The code that started the processes ends them. They inherit the mask of blocked signals. multiprocessing's and
    loky's resource trackers unblock the signal for this thread when they start, so they are started first. Their
    warnings about a run that was stopped are suppressed.
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
