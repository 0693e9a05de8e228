"""Places that no other user can change.

Code is imported and run only from such places. Bundles that the user did not name are read only from there too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ROOT = 0
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_access_fault(found: os.stat_result, *, in_sticky: bool = False) -> str:
    """Return why another user could change a file or folder with this status; "" if only this user and root can.

    With `in_sticky`, a sticky folder such as /tmp, to which others can only add files, is accepted.
    """
    if found.st_uid not in (_ROOT, os.geteuid()) and found.st_uid != _unmapped_root():
        return "belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (in_sticky and found.st_mode & stat.S_ISVTX):
        return "can be written by others (chmod go-w)"
    return ""


def replacement_risk(folder: str | Path) -> str:
    """Return why another user could replace a file that this user creates in `folder`, or "".

    The text names the folder on the path, and its fault.

    Returns "" if no other user can: then a path below `folder` names the same file until this user changes it. Each
    folder is opened from the one above it, so that none can be exchanged between two checks. Raises OSError if a folder
    does not exist.
    """
    parts = Path(os.path.realpath(folder)).parts
    with contextlib.ExitStack() as stack:
        descriptor = None
        for number, part in enumerate(parts):
            descriptor = os.open(part, _FOLDER, dir_fd=descriptor)
            stack.callback(os.close, descriptor)
            if fault := write_access_fault(os.fstat(descriptor), in_sticky=True):
                return f"{Path(*parts[: number + 1])} {fault}"
    return ""


def user_cache_folder() -> Path | None:
    """Return this user's own cache folder, whatever $GENKERN_CACHE_DIR says; None without a home folder."""
    try:
        return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "genkern").expanduser()
    except RuntimeError:
        return None


def is_private(folder: Path) -> bool:
    """Return True if this user can create files in `folder` and no other user can replace them.

    `folder` need not exist.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        return os.access(there, os.W_OK | os.X_OK) and not replacement_risk(there)
    except OSError:
        return False


def private_subfolder(folder: Path, name: str) -> Path:
    """Return `folder`/`name` if that is private, otherwise a private folder of this name elsewhere.

    The other places are beside the user's cache folder and below TMPDIR.

    The folder is created for this user alone. Raises OSError.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    own = user_cache_folder()
    # Not in genkern's cache folder, which a umask of 002 makes writable by the user's group.
    places = [folder / name, *([own.with_name("genkern-private") / name] if own is not None else [])]
    places.append(Path(tempfile.gettempdir()) / f"genkern-{os.geteuid()}" / name)
    for place in places:
        if is_private(place):
            with contextlib.suppress(OSError):
                # A cache may belong to a group; the other folders are genkern's own.
                mode = 0o777 if place.parent == folder else 0o700
                place.parent.parent.mkdir(mode, parents=True, exist_ok=True)
                place.parent.mkdir(mode, exist_ok=True)
                place.mkdir(mode=0o700, exist_ok=True)
                if not replacement_risk(place) and not write_access_fault(os.stat(place)):
                    return place
    raise PermissionError(errno.EACCES, "others can write to every possible place; set TMPDIR to a folder of yours")


@contextlib.contextmanager
def open_own_file(path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the file at `path`, and why another user could have written it, or "".

    The message names `path` or its folder. Both are checked as they were opened. Raises OSError.
    """
    folder_path, name = os.path.split(os.path.abspath(path))
    with contextlib.ExitStack() as stack:
        folder = os.open(folder_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        # Opening a pipe would otherwise wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        stack.callback(os.close, file)
        said = ""
        if fault := write_access_fault(os.fstat(folder), in_sticky=True):
            said = f"{folder_path} {fault}"
        elif fault := write_access_fault(os.fstat(file)):
            said = f"{path} {fault}"
        elif not stat.S_ISREG(os.fstat(file).st_mode):
            said = f"{path} is not a file"
        yield file, said


def _unmapped_root() -> int | None:
    """Return the owner that root's files have in a user namespace without root, such as an unprivileged container.

    Returns None if the namespace has root.
    """
    try:
        maps = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if any(int(inside) <= _ROOT < int(inside) + int(count) for inside, _, count in maps):
            return None
        return int(Path("/proc/sys/fs/overflowuid").read_text())
    except (OSError, ValueError):
        return None
