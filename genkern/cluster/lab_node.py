"""What runs on a node with GPUs: a few sizes at a time, tuned by a genkern of their own on a GPU of their own."""

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
# What a tuning needs to write what it has.
_GRACE_S = 15.0
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Share:
    """Sizes for one GPU of an architecture: the list as text, and the options of tuning; `topic` is where news go."""

    arch: str
    sizes: str
    options: tuple[str, ...]
    topic: str
    number: int

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Share:
        """The share of a text. Raises ValueError, TypeError or LookupError for what is none."""
        said = json.loads(text)
        options = tuple(str(option) for option in said["options"])
        return cls(str(said["arch"]), str(said["sizes"]), options, str(said["topic"]), int(said["number"]))


@dataclass(frozen=True)
class Done:
    """How the genkern of a share ended: its exit status, its results as text, and the last that it said."""

    status: int
    results: str
    said: str
    origin: str

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Done:
        """What `tuned_here` has answered. Raises ValueError, TypeError or LookupError for what is no answer."""
        said = json.loads(text)
        return cls(int(said["status"]), str(said["results"]), str(said["said"]), str(said["origin"]))


def tuned_here(text: str) -> str:
    """Tune a share, whose text this is, on a free GPU of this machine, and say how that ended (`Done`)."""
    share = Share.read(text)
    tell, is_wanted = _of_dask(share)
    with _gpu(share.arch) as index, tempfile.TemporaryDirectory(prefix="genkern-lab-") as folder:
        if index is None:
            return Done(2, "", f"no free {share.arch} GPU is here", "").text()
        origin = f"GPU {index} of {socket.gethostname()!r}"

        def of_results(results: str) -> None:
            tell(Done(0, results, "", origin).text())

        return _run(share, Path(folder), index, of_results, origin, is_wanted).text()


def _run(
    share: Share,
    folder: Path,
    index: int,
    tell: Callable[[str], object],
    origin: str,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Done:
    """Until its genkern ends, or nobody wants it any more: that ends it, so that the GPU is free for others."""
    sizes, results, log = folder / "sizes.yaml", folder / "results.yaml", folder / "log"
    sizes.write_text(share.sizes, encoding="utf-8")
    given = ["-i", str(sizes), "-o", str(results), "--arch", share.arch, "--gpu_ids", str(index)]
    # This module run as a program: genkern in a process that ends with this one.
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
    return Done(process.returncode, _text_of(results), last, origin)


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
    """The number of a GPU that no other worker of this machine has meanwhile; None where there is none."""
    with contextlib.ExitStack() as stack:
        index = None
        for device in detect_devices():
            if device.arch == arch:
                with contextlib.suppress(Locked, OSError):
                    stack.enter_context(held(_lock_of(device)))
                    index = device.index
                    break
        # Outside: what its block raises is nothing of the lock's.
        yield index


def _lock_of(device: DetectedDevice) -> Path:
    """Its number is another in a worker that sees some of the GPUs only."""
    shown = "".join(os.environ.get(name, "") for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    name = device.uuid or f"{device.arch}-{shown}-{device.index}"
    return Path(tempfile.gettempdir()) / f"genkern-{re.sub(r'[^A-Za-z0-9-]', '_', name)}.gpu"


def _of_dask(share: Share) -> tuple[Callable[[str], object], Callable[[], bool]]:
    """How to send news, and whether anybody waits for the end, where this is a worker of Dask's; its threads are for
    others then, since this one only waits: otherwise kernels that this very size wants might wait for its end.
    """
    try:
        from distributed import get_worker, secede

        worker = get_worker()
    except (ImportError, ValueError):
        return lambda news: None, lambda: True
    key = worker.get_current_task()
    secede()

    def is_wanted() -> bool:
        # Of a task that runs Dask can only note that its client has cancelled it, or gone.
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    return lambda news: worker.log_event(share.topic, {"number": share.number, "news": news}), is_wanted


def _end_with(parent: int) -> None:
    """Stop as by SIGTERM when the worker has ended, whatever ended it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with(int(sys.argv.pop(1)))
    from genkern.__main__ import command

    command()
