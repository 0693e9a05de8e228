"""Locks that the kernel drops with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from genkern.errors import OutputError
from genkern.files import regular, shown_path
from genkern.journal.run_files import RunFiles

# Whoever looks whether a lock is held has it for some microseconds, and keeps nobody out in that time.
_PATIENCE_S = 0.2
_LOOK_AGAIN_S = 0.01
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)

# The locks of this process. A forked one would hold them too, beyond the end of this one.
_held: set[IO[str]] = set()


def _let_go() -> None:
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


class Locked(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def held(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path` for the block, and remove it afterwards.

    Raises Locked when another process goes on holding it, OSError when the file cannot be made. Where a file system
    has no locks, nobody is kept out.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        with open(path, "a", opener=regular) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _TAKEN:
                    if time.monotonic() > deadline_s:
                        raise Locked(str(path)) from None
                    time.sleep(_LOOK_AGAIN_S)
                    continue
            if not _is_still(path, file.fileno()):
                continue  # its last holder removed it before we had the lock
            _held.add(file)
            try:
                yield
            finally:
                _held.discard(file)
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return


def is_held(path: str | Path) -> bool | None:
    """Whether a process, on any node, holds the lock file; None where the file system does not tell.

    Nothing is written, and whoever wants the lock at this moment gets it.
    """
    try:
        file = open(path, "rb", opener=regular)  # noqa: SIM115  closed below, whatever flock says
    except OSError as error:
        return False if error.errno == errno.ENOENT else None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in _TAKEN else None
        return False


@contextlib.contextmanager
def sole_run(results_path: str) -> Iterator[None]:
    """Let no second run work on this results file and its journal.

    Raises OutputError when one does, and for a name that leaves no room for those of a run's other files.
    """
    where, files = shown_path(results_path), RunFiles(results_path)
    lock = files.lock
    files.require_room_for_names()
    with contextlib.ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(lock))
        except Locked:
            raise OutputError(f"another run is writing {where}: wait for it, or give another -o") from None
        except OSError as error:
            raise OutputError(f"cannot write {where} ({error.strerror}); give another -o") from None
        yield


def _is_still(path: str | Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
