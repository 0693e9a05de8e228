"""What runs on a node: one task after another in each thread of a worker, without PyTorch and without a GPU.

A compile runs in a process of its own, as in the farm's own workers: one that hangs or dies costs itself, and the
worker lives on. It ends with the worker.
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

from genkern.errors import BugError, MachineError, OutputError
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob, CompileProcess, forked
from genkern.farm.remote.unit import PROTOCOL, Foreign, NotBegun, Result, There, Unit, answered, read_task
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.files import cache_folder
from genkern.gemm.gpus import detect_devices
from genkern.gemm.records import Binary
from genkern.gemm.triton_release import triton_version
from genkern.kernels.kernel import Target

# More than a node has threads, so that none is removed before it is read.
_MODULES_KEPT = 256
# Nobody waits longer for the first unit of a task than that, and what the last one takes; a node that is lost costs as
# much of each of its threads.
_TASK_S = 3.0


class _OfThread(threading.local):
    """The compile process of a worker's thread."""

    process: CompileProcess | None = None


_own = _OfThread()
_forking = threading.Lock()


def made_here(data: bytes) -> bytes:
    """What comes of the task that this is (genkern.farm.remote.unit): of each unit the entry of this node's cache, if
    it has it. A task that takes long gives back the units that are not begun.
    """
    began_s = time.monotonic()
    results: list[Result] = []
    for unit in read_task(data):
        late = bool(results) and time.monotonic() - began_s > _TASK_S
        results.append(NotBegun() if late else _made(unit))
    return answered(results)


def greet(made_for: str) -> str:
    """What this node says of itself, as JSON: `why` it cannot make kernels that are to be as the `MadeFor` of this text
    says ("" where it can), the architectures of its GPUs, and its host.
    """
    why = _mismatch(MadeFor(**{name: str(value) for name, value in json.loads(made_for).items()}))
    archs = [device.arch for device in detect_devices()]
    return json.dumps({"why": why, "archs": archs, "host": socket.gethostname(), "protocol": PROTOCOL})


def _mismatch(wanted: MadeFor) -> str:
    here = MadeFor.here(Target("", "", 0), triton_version())
    if here.triton != wanted.triton:
        return f"it has Triton {here.triton or 'not at all'}, this run {wanted.triton}"
    if here.lowering != wanted.lowering:
        return "it has another genkern"
    return "" if here.environment == wanted.environment else "it has other settings of Triton"


def _made(unit: Unit) -> Result:
    if why := _mismatch(unit.made_for):
        return Foreign(_address(), why)
    shared = unit.shared if unit.shared is not None and unit.shared.is_seen else None
    cache = BinaryCache(cache_folder(None) / "binaries" if shared is None else shared.folder)
    # A scheduler that loses a worker has others repeat what that one had finished.
    result = cache.get(unit.key)
    if result is None:
        try:
            result = _compiled(unit, cache)
        except MachineError as error:
            # Other nodes may do it.
            return Foreign(_address(), str(error))
        except (OutputError, BugError) as error:
            return error
    if isinstance(result, Failure) and cache.get(unit.key) is None:
        return result
    # This node's user may not be allowed to store anything in the shared folder.
    is_there = shared is not None and not shared.whole and cache.has_here(unit.key)
    return There(unit.key) if is_there else cache.files(unit.key)


def _compiled(unit: Unit, cache: BinaryCache) -> Binary | Failure:
    path = _modules.path(unit.module)
    job = CompileJob(unit.key, path, unit.spec, unit.target, str(cache.folder), unit.timeout_s)
    if _own.process is None or not _own.process.alive:
        _own.process = _new_process()
    result = _own.process.run(job)
    if not _own.process.alive:
        _own.process = None
    return result


def _new_process() -> CompileProcess:
    """Dask's workers are daemons to multiprocessing, which lets such have no children lest these outlive them: ours
    end with the worker, whatever ends it.
    """
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    with _forking:
        before = config.get("daemon")
        config["daemon"] = False
        try:
            return forked()
        finally:
            config["daemon"] = before


class _Modules:
    """Modules of the last units, as files that stay: a compile process keeps what it has imported, by path."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def path(self, text: str) -> str:
        """The file with this text, whose name says which text it is."""
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
    """Which worker this is, as its scheduler knows it."""
    with contextlib.suppress(ImportError, ValueError):
        from distributed import get_worker

        return str(get_worker().address)
    return f"{socket.gethostname()} {os.getpid()}"
