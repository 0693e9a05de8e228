"""File locks that the kernel releases when the process that holds them ends, however it ends."""

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
from genkern.file_io import open_regular, shown_path
from genkern.journal.run_files import RunFiles

# A process that tests whether a lock is held holds it for some microseconds. Waiting this long tolerates such tests.
_PATIENCE_S = 0.2
_LOOK_AGAIN_S = 0.01
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)

# Locks of this process. A forked process must close them, or it would keep them beyond the end of this process.
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
    """Hold the lock file `path` during the block, and remove it afterwards.

    Raises Locked if another process keeps holding it, OSError if the file cannot be created. On a file system without
    locks, several processes may hold it.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        with open(path, "a", opener=open_regular) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _TAKEN:
                    if time.monotonic() > deadline_s:
                        raise Locked(str(path)) from None
                    time.sleep(_LOOK_AGAIN_S)
                    continue
            if not _is_still(path, file.fileno()):
                continue  # its last holder removed it before this process got the lock
            _held.add(file)
            try:
                yield
            finally:
                _held.discard(file)
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return


def is_held(path: str | Path) -> bool | None:
    """Return True if a process, on any node, holds the lock file; None if that cannot be determined.

    It cannot if the file cannot be opened, or if the file system does not support locks. Writes nothing. Holds a shared
    lock for some microseconds, which `held` waits for.
    """
    try:
        file = open(path, "rb", opener=open_regular)  # noqa: SIM115  closed below, whatever flock says
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
    """Prevent a second run on this results file and its journal during the block.

    Raises OutputError if there is one, and for a name that is too long for the names of a run's other files.
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
