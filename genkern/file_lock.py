"""Locks that the kernel drops with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from genkern.errors import OutputError
from genkern.files import shown_path


class Locked(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def held(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path` for the block, and remove it afterwards.

    Raises Locked when another process holds it, OSError when the file cannot be made. Where a file system
    has no locks, nobody is kept out.
    """
    while True:
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise Locked(str(path)) from None
            if not _is_still(path, file.fileno()):
                continue  # its last holder removed it before we had the lock
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return


@contextlib.contextmanager
def sole_run(results_path: str) -> Iterator[None]:
    """Let no second run work on this results file and its journal. Raises OutputError when one does."""
    where = shown_path(results_path)
    with contextlib.ExitStack() as stack:
        try:
            Path(results_path).parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(f"{results_path}.lock"))
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
