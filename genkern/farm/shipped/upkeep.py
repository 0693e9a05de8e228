"""What lies in a cache of compiled kernels, and which of it is to go: what nobody has used for longest."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from genkern.farm.cache import MARKED_EVERY_S

# A run may be at what was used so lately: an entry says when that was with MARKED_EVERY_S of doubt, and a run needs
# what it has looked up for as long as a size takes.
IN_USE_S = MARKED_EVERY_S + 3600.0
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """An entry of a cache: its room on the disk, when it was used last (seconds since 1970, an hour less or more), and
    whether it is a kernel that a compiler refused. `readable` is False if another user's umask keeps it from this one;
    then its size is not known.
    """

    key: str
    size_bytes: int
    used_s: float
    refused: bool
    readable: bool = True


def entries(folder: Path) -> Iterator[Entry]:
    """What is in the folder of a cache, without a look into any file. What goes meanwhile is left out.

    An entry whose time lies in the future counts as used now, and is marked so.
    """
    for name in sorted(_names(folder)):
        for key in sorted(_names(folder / name)) if len(name) == 2 else ():
            if key.startswith(name) and _KEY.fullmatch(key) and (found := _entry(folder / name / key)) is not None:
                yield found


def unneeded(found: Iterable[Entry], now_s: float, most_bytes: int | None, most_age_s: float | None) -> list[Entry]:
    """Those that have not been used for `most_age_s`, and of the others, while they are more than `most_bytes`, those
    that have not been for longest. What a run may be using (`IN_USE_S`) is never among them.
    """
    longest_unused = sorted(found, key=lambda entry: (entry.used_s, entry.key))
    left = sum(entry.size_bytes for entry in longest_unused)
    going = []
    for entry in longest_unused:
        age_s = now_s - entry.used_s
        too_old = most_age_s is not None and age_s > most_age_s
        too_much = most_bytes is not None and left > most_bytes
        if age_s > IN_USE_S and (too_old or too_much):
            going.append(entry)
            left -= entry.size_bytes
    return going


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _entry(folder: Path) -> Entry | None:
    try:
        with os.scandir(folder) as inside:
            files = {file.path: file.stat(follow_symlinks=False) for file in inside}
    except PermissionError:
        return Entry(folder.name, 0, _time_of(folder), refused=False, readable=False)
    except OSError:
        return None
    # File systems that keep short files elsewhere say that these take no blocks.
    size = sum(max(stat.st_size, stat.st_blocks * 512) for stat in files.values())
    # The latest is the record's, which is marked; without a record nobody can use the rest.
    used_s = max((stat.st_mtime for stat in files.values()), default=0.0)
    if used_s > (now_s := time.time()) + MARKED_EVERY_S:
        # A clock was wrong. From now on the entry grows old as others do.
        for path, stat in files.items():
            if stat.st_mtime > now_s:
                with contextlib.suppress(OSError):
                    os.utime(path, (now_s, now_s))
        used_s = now_s
    return Entry(folder.name, size, used_s, len(files) == 1)


def _time_of(folder: Path) -> float:
    try:
        return min(os.stat(folder).st_mtime, time.time())
    except OSError:
        return 0.0
