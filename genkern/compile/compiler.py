"""Compiles kernels, one after another, in a child process of each worker. Runs without PyTorch.

The child process is replaced if it hangs or dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from genkern.compile.binary.code_object import fault_of, is_cut_short, read_resources, with_loop
from genkern.compile.binary.main_loop import main_loop_of_assembly
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.cute_compiler import compile_cute
from genkern.errors import (
    BugError,
    GenkernError,
    MachineError,
    OutputError,
    machine_fault,
    reporting_bugs,
    reporting_machine_faults,
)
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.cute.release import MISSING
from genkern.kernels.kernel import KernelSpec, Target
from genkern.kernels.lowering import DEFAULT_SETTINGS, SETTINGS
from genkern.kernels.refusal import cause_of, compiler_message, is_verdict, refused_by_compiler
from genkern.kernels.source import ast_source, load_module

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_WATCH_INTERVAL_S = 0.5
# Signals that a batch system, the out-of-memory killer or a person sends.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
# The known kernel compiles in 0.1 s, but importing the compiler from a slow disk may take long.
_PROOF_S = 120.0
_WHAT_TO_CHECK = "check TMPDIR and the cache (space, inodes, quota), and the limits of memory, processes and files"


@dataclass(frozen=True)
class CompileJob:
    """One binary to compile: `spec` of the module at `module_path`, to be stored in `cache_dir` under `key`.

    The compiler's temporary files go to a folder in `temporary_dir` (None: TMPDIR).
    """

    key: str
    module_path: str
    spec: KernelSpec
    target: Target
    cache_dir: str
    timeout_s: float
    temporary_dir: str | None = None


def use_quiet_triton(temporary: str) -> None:
    """Keep Triton out of the user's cache, and make its output independent of the source file's path."""
    os.environ["TRITON_CACHE_DIR"] = temporary
    # ptxas and lld, and the files that Triton writes for them, would otherwise stay in TMPDIR when a compile is killed.
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    os.environ.update(SETTINGS)
    for name, value in DEFAULT_SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ.pop("TRITON_INTERPRET", None)


def _leave_triton_unread() -> None:
    """Skip Triton's hash of its own library, which reads 460 MB and takes 0.4 s per process.

    The hash only names folders in Triton's cache, which is deleted after each kernel. genkern's keys contain Triton's
    release.
    """
    from triton.runtime import cache

    if hasattr(cache, "triton_key"):
        cache.triton_key = _no_key


def _no_key() -> str:
    return ""


def compile_kernel(job: CompileJob, temporary: str) -> Binary | Failure:
    """Compile a kernel in this process, and store the binary or the compiler's refusal in the cache.

    The compiler's files go to the folder `temporary`, which the caller removes. Only a certain refusal of the kernel is
    stored (`is_verdict`); one that may be the machine's fault is returned as a Failure `from_outside`. Raises OSError
    and MachineError for faults of the machine, and BugError for generated code that is wrong.
    """
    cache = BinaryCache(job.cache_dir)
    if (known := cache.get(job.key)) is not None:
        return known
    if job.spec.language == "cute":
        return compile_cute(job.key, job.spec, job.target, cache, temporary)
    where = f"compiling {job.spec.function}"
    started_s = time.monotonic()
    with reporting_bugs(where):
        source = ast_source(load_module(job.module_path), job.spec)
    try:
        kernel = _compiled(source, job.spec, job.target, temporary)
    except Exception as error:
        cause = cause_of(error)
        if machine_fault(cause) and not isinstance(cause, MemoryError):
            raise cause from None
        if not refused_by_compiler(error, job.module_path):
            raise BugError.of(error, where, compiler_message(error)) from error
        failure = Failure(job.key, Outcome.COMPILE_FAILED, compiler_message(error), not is_verdict(error))
        if not failure.from_outside:
            cache.put_failure(failure)
        return failure
    extension = "hsaco" if job.target.backend == "hip" else "cubin"
    binary = kernel.asm[extension]
    if is_cut_short(binary):
        raise MachineError(f"the {extension} of {job.spec.function} is cut short: free space in TMPDIR")
    if fault := fault_of(binary, job.target.backend):
        failure = Failure(job.key, Outcome.COMPILE_FAILED, fault)
        cache.put_failure(failure)
        return failure
    metadata = next(path for name, path in kernel.metadata_group.items() if name.endswith(".json"))
    with open(metadata, "rb") as file:
        files = {f"kernel.{extension}": binary, "kernel.json": file.read()}
    resources = read_resources(binary, job.target.backend, kernel.metadata.shared)
    if (loop := main_loop_of_assembly(kernel.asm.get("amdgcn", ""))) is not None:
        resources = with_loop(resources, loop)
    compile_s = round(time.monotonic() - started_s, 3)
    return cache.put(job.key, job.spec, kernel.metadata.name, resources, files, compile_s)


def check_compiler(target: Target, temporary: str) -> None:
    """Compile the known kernel for `target` in this process. Raises MachineError if that fails, whatever the reason."""
    try:
        from genkern.compile import known_kernel

        spec = known_kernel.KNOWN_SPEC
        # A folder of its own: with Triton's cache of an earlier proof nothing would be compiled.
        with tempfile.TemporaryDirectory(prefix="proof-", dir=temporary) as folder:
            kernel = _compiled(ast_source(known_kernel, spec), spec, target, folder)
        if is_cut_short(kernel.asm["hsaco" if target.backend == "hip" else "cubin"]):
            raise MachineError("its binary is cut short")
    except Exception as error:
        raise _does_not_work(target, machine_fault(cause_of(error)) or compiler_message(error)) from error


def _does_not_work(target: Target, why: str) -> MachineError:
    known = f"a known kernel for {target.backend} {target.arch}"
    return MachineError(f"the compiler fails on {known}: {why[:300]}; {_WHAT_TO_CHECK}, and the installed Triton")


def _compiled(source: Any, spec: KernelSpec, target: Target, temporary: str) -> Any:
    """Return the result of triton.compile. Raises its exceptions."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile as triton_compile

    use_quiet_triton(temporary)
    _leave_triton_unread()
    # For AMD the assembly describes the main loop; for NVIDIA the binary does.
    os.environ["TRITON_STORE_BINARY_ONLY"] = "0" if target.backend == "hip" else "1"
    gpu_target = GPUTarget(target.backend, target.arch, target.warp_size)
    return triton_compile(source, target=gpu_target, options=dict(spec.options))


class CompileProcess:
    """A process that compiles one job after another; it is replaced when it hangs or dies.

    It compiles a known kernel before its first job for a target, and after each failure that the machine may have
    caused.
    """

    def __init__(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._connection = ours
        self._killing = threading.Lock()
        self._proven: set[Target] = set()
        # Forked, because the worker has already imported Triton. The child uses nothing else of the worker.
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(theirs, ours, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, job: CompileJob) -> Binary | Failure:
        """Return the job's result. A timeout, which kills the process, and the death of the process are Failures too.

        Raises OutputError if the cache or the temporary folder cannot be written, MachineError if the compiler does not
        work at all, and BugError as `compile_kernel` does.
        """
        # Created and removed in the parent, since the compile process may be killed at any moment.
        try:
            temporary = tempfile.mkdtemp(prefix="genkern-triton-", dir=job.temporary_dir)
        except OSError as error:
            raise _no_temporary_folder(error) from None
        try:
            if job.target not in self._proven:
                self._prove(job.target, temporary)
            result = self._run(job, temporary)
            may_be_machine = isinstance(result, Failure) and result.from_outside and result.message != MISSING
            if may_be_machine and self.alive:
                self._prove(job.target, temporary)
            return result
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _run(self, job: CompileJob, temporary: str) -> Binary | Failure:
        try:
            if (result := self._answer(job, temporary, job.timeout_s)) is None:
                return Failure(job.key, Outcome.COMPILE_TIMED_OUT, f"no result after {job.timeout_s:g} s")
        except _ProcessDiedError as died:
            return Failure(job.key, Outcome.COMPILE_FAILED, f"the compiler {died}", died.from_outside)
        assert isinstance(result, Binary | Failure)
        return result

    def _prove(self, target: Target, temporary: str) -> None:
        """Have the known kernel compiled. Raises MachineError if that fails."""
        self._proven.discard(target)
        try:
            if self._answer(target, temporary, _PROOF_S) is None:
                raise _does_not_work(target, f"no result after {_PROOF_S:g} s")
        except _ProcessDiedError as died:
            raise _does_not_work(target, f"it {died}") from None
        self._proven.add(target)

    def _answer(self, question: CompileJob | Target, temporary: str, timeout_s: float) -> object:
        """Send a question and return the process's answer, or None after `timeout_s` seconds, when the process is
        killed.

        Raises the exception that the process sends, and _ProcessDiedError if it died.
        """
        try:
            self._connection.send((question, temporary))
            if not self._connection.poll(timeout_s):
                self.kill()
                return None
            result = self._connection.recv()
        except (EOFError, ConnectionError):
            self.kill()
            raise _ProcessDiedError(self._process.exitcode or 0) from None
        if isinstance(result, GenkernError | BugError):
            raise result
        return result

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """Kill the process and the assembler that it may be running. Any thread may call this, even while another
        waits."""
        with self._killing:
            if self._connection.closed:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid or 0, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._connection.close()


class _ProcessDiedError(Exception):
    """A compile process ended; the text says how: "died by SIGSEGV", "exited with status 3"."""

    def __init__(self, code: int) -> None:
        super().__init__(f"died by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}")
        self.from_outside = -code in _FROM_OUTSIDE


def _serve(connection: Connection, other_end: Connection, parent_pid: int) -> None:
    # A process group of its own, so that a kill reaches ptxas and lld too. The process dies with the worker.
    other_end.close()
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "w") as null:
        # Compilers print their refusals; the Failure keeps the message.
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
        sys.stdout = sys.stderr = null
        while True:
            try:
                question, temporary = connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            try:
                result: object = True
                where = f"compiling {question.spec.function}" if isinstance(question, CompileJob) else "proving"
                if isinstance(question, Target):
                    check_compiler(question, temporary)
                else:
                    result = compile_kernel(question, temporary)
            except (OutputError, MachineError, BugError) as error:
                result = error
            except OSError as error:
                result = _no_temporary_folder(error)
            except Exception as error:
                why = machine_fault(error)
                result = MachineError(f"cannot compile: {why}; {_WHAT_TO_CHECK}") if why else BugError.of(error, where)
            connection.send(result)


def _no_temporary_folder(error: OSError) -> OutputError:
    return OutputError(f"cannot compile: {machine_fault(error)}; {_WHAT_TO_CHECK}")


_process: CompileProcess | None = None
# The parent-death signal is sent when the thread that forked ends. With one job the forking thread would belong to the
# driver, whose threads come and go. So one thread does all forks and lives until the interpreter ends. It blocks
# SIGINT, and its children inherit that.
_forker = ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, {signal.SIGINT}))


def run_job(job: CompileJob, driver_pid: int) -> Binary | Failure:
    """Compile a job in this worker's compile process, which is kept for the next job. Entry point of the farm's
    workers.

    A worker ends with its parent, the process `driver_pid`, even if that is killed. If this is the driver itself,
    nothing is watched.
    """
    global _process
    process = ensure_compile_process(driver_pid)
    result = process.run(job)
    if not process.alive:
        _process = None
    return result


def ensure_compile_process(driver_pid: int) -> CompileProcess:
    """Return this worker's compile process, and fork one if there is none."""
    global _process
    if driver_pid != os.getpid():
        end_with(driver_pid)
    if _process is None or not _process.alive:
        _process = fork_compile_process()
    return _process


def fork_compile_process() -> CompileProcess:
    """Return a new compile process, which ends when this process does. Raises MachineError if it cannot be started."""
    with reporting_machine_faults("start the compiler", _WHAT_TO_CHECK):
        # Imported before the fork, so that a replacement starts at once. A first compile imports the code generator.
        import triton.compiler.code_generator  # noqa: F401

        return _forker.submit(CompileProcess).result()


def end_own_process() -> None:
    """Kill this process's compile process, whatever it is doing; the next job gets a new one."""
    global _process
    process, _process = _process, None
    if process is not None:
        process.kill()


@lru_cache(maxsize=1)
def end_with(driver_pid: int) -> None:
    """End this worker and its compile process soon after its parent `driver_pid` ends, however that ends."""

    def watch() -> None:
        # A parent-death signal would be sent when the *thread* that started this worker ends, not the process.
        while os.getppid() == driver_pid:
            time.sleep(_WATCH_INTERVAL_S)
        try:
            if _process is not None:
                _process.kill()
        finally:
            # Exit in any case: the worker's own thread may be killing the same compile process.
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
