"""Code that runs on a node with GPUs: tunes a few sizes at a time in a genkern process of its own, on one free GPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from genkern.gemm.gpus import DetectedDevice, detect_devices
from genkern.journal.file_lock import Locked, held
from genkern.python_child import child_environment, module_argv

_LOOK_S = 0.5
# Time that a tuning run needs to write its results.
_GRACE_S = 15.0
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class LabTask:
    """Sizes for one GPU.

    arch: its architecture
    sizes: the size list, as text
    options: options of tuning
    topic: the Dask topic for news
    number: number of the share
    """

    arch: str
    sizes: str
    options: tuple[str, ...]
    topic: str
    number: int

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> LabTask:
        """Parse a share. Raises ValueError, TypeError or LookupError for invalid text."""
        said = json.loads(text)
        options = tuple(str(option) for option in said["options"])
        return cls(str(said["arch"]), str(said["sizes"]), options, str(said["topic"]), int(said["number"]))


@dataclass(frozen=True)
class LabResult:
    """How the tuning of a share ended.

    status: exit status of genkern
    results: its results file, as text
    said: the last line that it printed
    origin: GPU and host
    """

    status: int
    results: str
    said: str
    origin: str

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> LabResult:
        """Parse the answer of `tune_on_free_gpu`. Raises ValueError, TypeError or LookupError for invalid text."""
        said = json.loads(text)
        return cls(int(said["status"]), str(said["results"]), str(said["said"]), str(said["origin"]))


def tune_on_free_gpu(text: str) -> str:
    """Tune the share in `text` on a free GPU of this machine; return how that ended, as the text of a `LabResult`."""
    share = LabTask.read(text)
    tell, is_wanted = _of_dask(share)
    with _gpu(share.arch) as index, tempfile.TemporaryDirectory(prefix="genkern-lab-") as folder:
        if index is None:
            return LabResult(2, "", f"no free {share.arch} GPU is here", "").text()
        origin = f"GPU {index} of {socket.gethostname()!r}"

        def of_results(results: str) -> None:
            tell(LabResult(0, results, "", origin).text())

        return _run(share, Path(folder), index, of_results, origin, is_wanted).text()


def _run(
    share: LabTask,
    folder: Path,
    index: int,
    tell: Callable[[str], object],
    origin: str,
    is_wanted: Callable[[], bool] = lambda: True,
) -> LabResult:
    """Tune the share in a genkern process. If the share is no longer wanted, stop the process to free the GPU.

    tell: called with the text of the results file whenever it has changed
    """
    sizes, results, log = folder / "sizes.yaml", folder / "results.yaml", folder / "log"
    sizes.write_text(share.sizes, encoding="utf-8")
    given = ["-i", str(sizes), "-o", str(results), "--arch", share.arch, "--gpu_ids", str(index)]
    # This module is run as a program, which runs genkern and ends with this process.
    command = module_argv(__name__, str(os.getpid()), *share.options, *given)
    with open(log, "wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder, env=child_environment()
        )
    told = ""
    try:
        while process.poll() is None and is_wanted():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            if (text := _text_of(results)) != told:
                tell(told := text)
    finally:
        _stop(process)
    last = _text_of(log).strip().rpartition("\n")[2][-_ERROR_CHARACTERS:]
    return LabResult(process.returncode, _text_of(results), last, origin)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


@contextlib.contextmanager
def _gpu(arch: str) -> Iterator[int | None]:
    """Context manager that locks a GPU of an architecture and yields its index; None if there is no free one.

    The lock keeps other Dask workers of this machine from the GPU.
    """
    with contextlib.ExitStack() as stack:
        index = None
        for device in detect_devices():
            if device.arch == arch:
                with contextlib.suppress(Locked, OSError):
                    stack.enter_context(held(_lock_of(device)))
                    index = device.index
                    break
        # Outside of the `suppress`, which must not hide exceptions of the caller's block.
        yield index


def _lock_of(device: DetectedDevice) -> Path:
    """Return the lock file of a GPU, named by its UUID.

    Without a UUID, the name contains the index and the list of visible GPUs, on which the index depends.
    """
    shown = "".join(os.environ.get(name, "") for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    name = device.uuid or f"{device.arch}-{shown}-{device.index}"
    return Path(tempfile.gettempdir()) / f"genkern-{re.sub(r'[^A-Za-z0-9-]', '_', name)}.gpu"


def _of_dask(share: LabTask) -> tuple[Callable[[str], object], Callable[[], bool]]:
    """Return a function that sends news, and one that tells whether the result is still wanted.

    In a Dask worker this also leaves the worker's thread pool, since the task mostly waits: otherwise compiles for this
    very share might wait for its thread.
    """
    try:
        from distributed import get_worker, secede

        worker = get_worker()
    except (ImportError, ValueError):
        return lambda news: None, lambda: True
    key = worker.get_current_task()
    secede()

    def is_wanted() -> bool:
        # Dask can only mark a running task as cancelled, by its client or because the client is gone.
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    return lambda news: worker.log_event(share.topic, {"number": share.number, "news": news}), is_wanted


def _end_with(parent: int) -> None:
    """Send this process SIGTERM when the worker has ended, however it ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with(int(sys.argv.pop(1)))
    from genkern.__main__ import command

    command()
