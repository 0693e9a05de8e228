"""Places that no other user can change. Code is imported and run from nowhere else, and bundles that the user did not
name are read from nowhere else.
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


def fault_of(found: os.stat_result, *, in_sticky: bool = False) -> str:
    """Why another user could change a file or folder with this status, "" if nobody but this user and root can.

    With `in_sticky`, a folder to which others can only add files of their own, as to /tmp, has no fault.
    """
    if found.st_uid not in (_ROOT, os.geteuid()) and found.st_uid != _unmapped_root():
        return "belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (in_sticky and found.st_mode & stat.S_ISVTX):
        return "can be written by others (chmod go-w)"
    return ""


def exposure(folder: str | Path) -> str:
    """Why another user could replace what this user makes in `folder`: which folder on the way to it has what fault.

    "" if nobody can: then a path below it names the same file for as long as this user leaves it there. Each folder is
    opened from the one above it, so that none is exchanged between two looks. Raises OSError for a folder that is not
    there.
    """
    parts = Path(os.path.realpath(folder)).parts
    with contextlib.ExitStack() as stack:
        descriptor = None
        for number, part in enumerate(parts):
            descriptor = os.open(part, _FOLDER, dir_fd=descriptor)
            stack.callback(os.close, descriptor)
            if fault := fault_of(os.fstat(descriptor), in_sticky=True):
                return f"{Path(*parts[: number + 1])} {fault}"
    return ""


def own_cache() -> Path | None:
    """The folder of this user's own cache, whatever $GENKERN_CACHE_DIR says; None without a home folder."""
    try:
        return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "genkern").expanduser()
    except RuntimeError:
        return None


def is_private(folder: Path) -> bool:
    """Whether this user can make files in `folder`, which need not be there yet, and no other user can replace them."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        return os.access(there, os.W_OK | os.X_OK) and not exposure(there)
    except OSError:
        return False


def private_below(folder: Path, name: str) -> Path:
    """`folder`/`name` if that is private, otherwise a folder of this name beside the user's own cache, or below TMPDIR.

    The folder is there, and was made for this user alone, when the function returns. Raises OSError.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    own = own_cache()
    # Not in genkern's cache, which a umask of 002 makes writable by the user's group.
    places = [folder / name, *([own.with_name("genkern-private") / name] if own is not None else [])]
    places.append(Path(tempfile.gettempdir()) / f"genkern-{os.geteuid()}" / name)
    for place in places:
        if is_private(place):
            with contextlib.suppress(OSError):
                # A cache may be for a group; each other folder is genkern's own.
                mode = 0o777 if place.parent == folder else 0o700
                place.parent.parent.mkdir(mode, parents=True, exist_ok=True)
                place.parent.mkdir(mode, exist_ok=True)
                place.mkdir(mode=0o700, exist_ok=True)
                if not exposure(place) and not fault_of(os.stat(place)):
                    return place
    raise PermissionError(errno.EACCES, "others can write to each place for it; set TMPDIR to a folder of yours")


@contextlib.contextmanager
def opened_ours(path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the file at `path`, and why another user could have written it, as a line about `path` or
    its folder ("" if nobody could). Both are judged as they were opened. Raises OSError.
    """
    folder_path, name = os.path.split(os.path.abspath(path))
    with contextlib.ExitStack() as stack:
        folder = os.open(folder_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        # A pipe would make the call wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        stack.callback(os.close, file)
        said = ""
        if fault := fault_of(os.fstat(folder), in_sticky=True):
            said = f"{folder_path} {fault}"
        elif fault := fault_of(os.fstat(file)):
            said = f"{path} {fault}"
        elif not stat.S_ISREG(os.fstat(file).st_mode):
            said = f"{path} is no file"
        yield file, said


def _unmapped_root() -> int | None:
    """The owner that root's files have in a user namespace that does not know root, as a container without privileges
    may be; None in others.
    """
    try:
        maps = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if any(int(inside) <= _ROOT < int(inside) + int(count) for inside, _, count in maps):
            return None
        return int(Path("/proc/sys/fs/overflowuid").read_text())
    except (OSError, ValueError):
        return None
