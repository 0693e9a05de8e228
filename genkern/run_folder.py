"""The folder of one run, for its generated modules and logs: gone when the run ends, or when the next one starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from genkern.errors import OutputError
from genkern.file_lock import Locked, held


@contextlib.contextmanager
def run_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, removed afterwards; those of runs that were killed on this machine go first.

    A run holds a lock beside its folder. Process numbers would not do to tell the dead from the living:
    containers and nodes that share `parent` have their own. Raises OutputError.
    """
    prefix = f"run-{socket.gethostname()}-"
    folder = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(parent, prefix)
            stack.enter_context(held(lock_of(folder)))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir()
        except OSError as error:
            raise OutputError(f"cannot write in {parent} ({error.strerror}); try another --cache_dir") from None
        yield folder


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders in `parent` whose names start with `prefix` and that no process holds."""
    for folder in parent.glob(f"{prefix}*/"):
        # Without a lock file nobody knows whose it is.
        if lock_of(folder).exists():
            with contextlib.suppress(OSError, Locked), held(lock_of(folder)):
                shutil.rmtree(folder, ignore_errors=True)


def lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
