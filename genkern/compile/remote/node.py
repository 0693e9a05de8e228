"""Code that runs on a node: one task after another in each thread of a worker, without PyTorch and without a GPU.

As on the main machine, compiles run in a process of their own: a compile that hangs or dies fails alone, and the worker
lives on. The process ends with the worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing.process
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob, CompileProcess, fork_compile_process
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote.unit import (
    PROTOCOL,
    AlreadyInSharedCache,
    CompileUnit,
    IncompatibleNode,
    NotBegun,
    Result,
    answered,
    read_task,
)
from genkern.errors import BugError, MachineError, OutputError
from genkern.file_io import cache_folder
from genkern.gemm.gpus import detect_devices
from genkern.gemm.records import Binary
from genkern.gemm.triton_release import triton_version
from genkern.kernels.kernel import Target

# More than a node has threads, so that no module is removed before it is read.
_MODULES_KEPT = 256
# A task begins no further unit after this many seconds, so that the results of its first units need not wait long. If a
# node is lost, about this much work per thread is lost.
_TASK_S = 3.0


class _OfThread(threading.local):
    """The compile process of a worker's thread."""

    process: CompileProcess | None = None


_own = _OfThread()
_forking = threading.Lock()


def compile_units(data: bytes) -> bytes:
    """Compile the units of a task (genkern.compile.remote.unit) and return their results, read from this node's cache
    if possible.

    A task that takes long returns the units that have not begun.
    """
    began_s = time.monotonic()
    results: list[Result] = []
    for unit in read_task(data):
        late = bool(results) and time.monotonic() - began_s > _TASK_S
        results.append(NotBegun() if late else _made(unit))
    return answered(results)


def greet(made_for: str) -> str:
    """Return this node's description as JSON.

    `why`: why it cannot compile kernels for the `MadeFor` in the argument's text, "" if it can; `archs`: the
        architectures of its GPUs; `host`; `protocol`.
    """
    why = _mismatch(MadeFor(**{name: str(value) for name, value in json.loads(made_for).items()}))
    archs = [device.arch for device in detect_devices()]
    return json.dumps({"why": why, "archs": archs, "host": socket.gethostname(), "protocol": PROTOCOL})


def _mismatch(wanted: MadeFor) -> str:
    here = MadeFor.here(Target("", "", 0), triton_version())
    if here.triton != wanted.triton:
        return f"it has Triton {here.triton or '(none)'}, this run {wanted.triton}"
    if here.lowering != wanted.lowering:
        return "it has another version of genkern"
    return "" if here.environment == wanted.environment else "it has other settings of Triton"


def _made(unit: CompileUnit) -> Result:
    if why := _mismatch(unit.made_for):
        return IncompatibleNode(_address(), why)
    shared = unit.shared if unit.shared is not None and unit.shared.is_seen else None
    cache = BinaryCache(cache_folder(None) / "binaries" if shared is None else shared.folder)
    # If a scheduler loses a worker, other workers repeat its finished tasks: their results are in the cache.
    result = cache.get(unit.key)
    if result is None:
        try:
            result = _compiled(unit, cache)
        except MachineError as error:
            # Other nodes may manage.
            return IncompatibleNode(_address(), str(error))
        except (OutputError, BugError) as error:
            return error
    if isinstance(result, Failure) and cache.get(unit.key) is None:
        return result
    # This node's user may not be allowed to write to the shared folder.
    is_there = shared is not None and not shared.whole and cache.has_here(unit.key)
    return AlreadyInSharedCache(unit.key) if is_there else cache.files(unit.key)


def _compiled(unit: CompileUnit, cache: BinaryCache) -> Binary | Failure:
    path = _modules.path(unit.module)
    job = CompileJob(unit.key, path, unit.spec, unit.target, str(cache.folder), unit.timeout_s)
    if _own.process is None or not _own.process.alive:
        _own.process = _new_process()
    result = _own.process.run(job)
    if not _own.process.alive:
        _own.process = None
    return result


def _new_process() -> CompileProcess:
    """Return a new compile process.

    multiprocessing does not let daemons, such as Dask's workers, have children, since these might outlive them. Compile
    processes end with the worker in any case, so the check is bypassed.
    """
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    with _forking:
        before = config.get("daemon")
        config["daemon"] = False
        try:
            return fork_compile_process()
        finally:
            config["daemon"] = before


class _Modules:
    """Modules of the latest units as files. They are kept, since a compile process keeps imported modules by path."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def path(self, text: str) -> str:
        """Return the path of a file with this text, whose name contains the text's digest."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        with self._writing:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="genkern-units-")
            path = self._paths.pop(digest, None)
            if path is None or not path.exists():
                path = Path(self._folder.name) / f"kernels_{digest}.py"
                path.write_text(text, encoding="utf-8")
            self._paths[digest] = path
            if len(self._paths) > _MODULES_KEPT:
                self._paths.pop(next(iter(self._paths))).unlink(missing_ok=True)
        return str(path)


_modules = _Modules()


def _address() -> str:
    """Return the address by which the scheduler knows this worker."""
    with contextlib.suppress(ImportError, ValueError):
        from distributed import get_worker

        return str(get_worker().address)
    return f"{socket.gethostname()} {os.getpid()}"
