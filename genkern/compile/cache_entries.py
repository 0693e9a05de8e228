"""Lists the entries of a cache of compiled kernels, and chooses those to remove, least recently used first."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from genkern.compile.cache import MARKED_EVERY_S

# A run may be using an entry that was used this recently. MARKED_EVERY_S is the resolution of the time of last use; a
# run needs the binaries that it has looked up until their size is tuned.
IN_USE_S = MARKED_EVERY_S + 3600.0
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """An entry of a cache.

    size_bytes: its size on the disk; 0 if it is not readable
    used_s: time of last use, in seconds since 1970, exact to an hour
    refused: True if the entry is a compiler's refusal of a kernel
    readable: False if another user's umask keeps it from this user
    """

    key: str
    size_bytes: int
    used_s: float
    refused: bool
    readable: bool = True


def entries(folder: Path) -> Iterator[Entry]:
    """Yield the entries of a cache folder, without opening any file. Entries that disappear meanwhile are left out.

    An entry whose time lies more than an hour in the future counts as used now, and its time is set to now.
    """
    for name in sorted(_names(folder)):
        for key in sorted(_names(folder / name)) if len(name) == 2 else ():
            if key.startswith(name) and _KEY.fullmatch(key) and (found := _entry(folder / name / key)) is not None:
                yield found


def entries_to_remove(
    found: Iterable[Entry], now_s: float, most_bytes: int | None, most_age_s: float | None
) -> list[Entry]:
    """Return the entries to remove, least recently used first.

    These are the entries that have not been used for `most_age_s` seconds, and as many other entries as must go to
    bring the cache down to `most_bytes` (None: no limit). Entries that a run may be using (`IN_USE_S`) are never
    removed.
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
    # File systems that store short files elsewhere report no blocks for them.
    size = sum(max(stat.st_size, stat.st_blocks * 512) for stat in files.values())
    # The latest time is the record's, which is updated on use; an entry without a record is useless.
    used_s = max((stat.st_mtime for stat in files.values()), default=0.0)
    if used_s > (now_s := time.time()) + MARKED_EVERY_S:
        # A clock was wrong. Set the time to now, so that the entry ages as others do.
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
