"""Folders of one run: for its modules and logs, or temporary. They are removed at its end, or by the next run."""

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
from genkern.file_io import shown_path
from genkern.journal.file_lock import Locked, held, is_held
from genkern.private_folders import is_private

_LOCK = ".lock"


@contextlib.contextmanager
def run_folder(parent: Path, kind: str = "run", instead: str = "another --cache_dir") -> Iterator[Path]:
    """Create a folder in `parent` for the block. Folders that killed runs left are removed first.

    kind: prefix of the folders' names
    instead: what the error message suggests if the folder cannot be written

    Only folders of this kind, machine and user are removed. A run holds a lock beside its folder. Process ids would not
    identify dead runs, since containers and nodes that share `parent` have their own. Raises OutputError.
    """
    prefix = f"{kind}-{socket.gethostname()}-"
    folder = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        try:
            parent.parent.mkdir(parents=True, exist_ok=True)
            parent.mkdir(mode=0o700, exist_ok=True)
            remove_abandoned(parent, prefix)
            stack.enter_context(held(lock_of(folder)))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot write in {parent} ({error.strerror}); try {instead}") from None
        yield folder


@contextlib.contextmanager
def modules_folder(cache: Path) -> Iterator[Path]:
    """Create a run's folder for its modules and logs, which no other user can change, since modules in it are imported.

    It lies in the cache's folder if that is private to this user, otherwise below TMPDIR or XDG_RUNTIME_DIR. Raises
    OutputError.
    """
    places = [(cache / "modules", "run", "another --cache_dir")]
    # XDG_RUNTIME_DIR is removed when the user logs out, which a run may outlive.
    for folder in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", "")):
        if folder:
            places.append((Path(folder), "genkern-modules", "another TMPDIR"))
    for parent, kind, instead in places:
        if is_private(parent):
            with run_folder(parent, kind, instead) as made:
                yield made
            return
    raise OutputError(
        f"other users can write to {shown_path(str(cache))} and to {shown_path(tempfile.gettempdir())}, from which "
        "modules would be imported: set TMPDIR to a folder to which only you can write"
    )


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders in `parent` whose names start with `prefix` and whose lock no process holds.

    A folder without a lock file stays, since its owner is unknown, and so does another user's folder.
    """
    for lock in parent.glob(f"{prefix}*{_LOCK}"):
        with contextlib.suppress(OSError, Locked):
            if os.lstat(lock).st_uid == os.geteuid() and is_held(lock) is False:
                with held(lock):
                    shutil.rmtree(lock.with_name(lock.name.removesuffix(_LOCK)), ignore_errors=True)


def lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_LOCK}")
