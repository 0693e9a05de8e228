"""Folders of one run, for its modules and logs or for temporary ones: gone when it ends, or when the next one tunes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from genkern.errors import OutputError
from genkern.journal.file_lock import Locked, held, is_held

_LOCK = ".lock"


@contextlib.contextmanager
def run_folder(parent: Path, kind: str = "run", instead: str = "another --cache_dir") -> Iterator[Path]:
    """A new folder in `parent`, removed afterwards; those of runs that were killed on this machine go first.

    `kind` is how their names begin; `instead` is what to try when nothing can be written. A run holds a lock beside
    its folder. Process numbers would not do to tell the dead from the living: containers and nodes that share
    `parent` have their own. Raises OutputError.
    """
    prefix = f"{kind}-{socket.gethostname()}-"
    folder = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(parent, prefix)
            stack.enter_context(held(lock_of(folder)))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot write in {parent} ({error.strerror}); try {instead}") from None
        yield folder


@contextlib.contextmanager
def modules_folder(cache: Path) -> Iterator[Path]:
    """A run's folder for its modules and logs: in the cache's folder, or below TMPDIR where that is read-only, as one
    that others have filled may be. Raises OutputError.
    """
    parent = cache / "modules"
    lies_in = parent if parent.exists() else cache
    if lies_in.exists() and not os.access(lies_in, os.W_OK):
        with run_folder(Path(tempfile.gettempdir()), "genkern-modules", "another TMPDIR") as folder:
            yield folder
    else:
        with run_folder(parent) as folder:
            yield folder


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders in `parent` whose names start with `prefix` and that no process holds.

    One without a lock file stays: nobody knows whose it is.
    """
    for lock in parent.glob(f"{prefix}*{_LOCK}"):
        if is_held(lock) is False:
            with contextlib.suppress(OSError, Locked), held(lock):
                shutil.rmtree(lock.with_name(lock.name.removesuffix(_LOCK)), ignore_errors=True)


def lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_LOCK}")
