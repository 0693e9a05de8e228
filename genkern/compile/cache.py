"""`BinaryCache`: compiled kernels by content address, shared by sizes, runs and nodes. It replaces Triton's own
cache."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from genkern.compile.binary.code_object import code_sha256
from genkern.errors import OutputError
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.kernel import KernelSpec
from genkern.private_folders import user_cache_folder

_RECORD = "genkern.json"
_BINARIES = ("kernel.cubin", "kernel.hsaco")
# Errors by which a folder of another user, or a read-only one, refuses an entry.
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
# Storing takes milliseconds, or seconds on a slow network. An older temporary folder was left by a process that died;
# process ids could not tell that on another node.
_ABANDONED_S = 3600.0
# Resolution of an entry's time of last use. Marking every read would cost a round trip on a network file system.
MARKED_EVERY_S = 3600.0


@dataclass(frozen=True)
class Failure:
    """A kernel that cannot be compiled, stored so that it is tried once only.

    `from_outside`: the compiler was ended from outside (by a signal, for lack of memory), or the machine may be at
        fault; the failure says nothing about the kernel and is not stored.
    """

    key: str
    outcome: Outcome
    message: str
    from_outside: bool = False


def _bytes_of(path: str) -> bytes:
    # Takes a third of the time of Path.read_bytes, and is called thousands of times per size.
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _mark_used(folder: Path) -> None:
    """Set the modification time of an entry's record to now; `genkern cache` reads it as the time of last use.

    A time less than `MARKED_EVERY_S` ago stays as it is, and so does every time in a read-only cache. Access times are
    not used, since few machines keep them.
    """
    path = f"{folder}/{_RECORD}"
    with contextlib.suppress(OSError):
        # The difference is absolute, so that a time in the future, from a wrong clock, is corrected too.
        if abs(time.time() - os.stat(path).st_mtime) > MARKED_EVERY_S:
            os.utime(path)


def _sealed(record: dict[str, Any]) -> bytes:
    """Return the record as JSON with its own sha256 as the last value, by which damage is detected."""
    return json.dumps({**record, "seal": hashlib.sha256(json.dumps(record).encode()).hexdigest()}).encode()


def _unsealed(data: bytes) -> dict[str, Any] | None:
    """Return the record without its seal, or None if it is damaged."""
    try:
        record = json.loads(data)
        if isinstance(record, dict) and record.pop("seal", None) is not None and data == _sealed(record):
            return record
    except (ValueError, RecursionError):
        pass
    return None


def without_compile_time(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the files of an entry without the compile time in its record; a damaged entry is returned unchanged."""
    if (record := _unsealed(files.get(_RECORD, b""))) is None or record.get("compile_s") is None:
        return files
    return {**files, _RECORD: _sealed({**record, "compile_s": None})}


def _whole(key: str, read: Callable[[str], bytes]) -> tuple[dict[str, Any], str | None] | None:
    """Return the record of an entry and the sha256 of its machine code, computed from the bytes that `read(name)`
    returns.

    The digest is None for a failure. Returns None if a file is not as it was stored, or has other machine code than the
    record says. Raises OSError if a file cannot be read, and KeyError, TypeError, ValueError or AttributeError for a
    record with other fields.
    """
    record = _unsealed(read(_RECORD))
    # Entries of older versions of genkern do not store their key.
    if record is None or record.get("key", key) != key:
        return None
    if record["outcome"] is not None:
        return record, None
    files = {name: read(name) for name in record["sha256"]}
    if any(hashlib.sha256(files[name]).hexdigest() != digest for name, digest in record["sha256"].items()):
        return None
    code = next((code_sha256(data) for name, data in files.items() if name in _BINARIES), None)
    if code is not None and record["resources"].get("code_sha256", code) not in (None, code):
        return None
    return record, code


def _checked(key: str, folder: Path, read: Callable[[str], bytes]) -> Binary | Failure | None:
    """Validate and load an entry whose files `read(name)` returns, and whose folder is `folder`.

    Returns None if it is damaged.
    """
    try:
        if (found := _whole(key, read)) is None:
            return None
        record, code = found
        if record["outcome"] is not None:
            return Failure(key, Outcome(record["outcome"]), str(record["message"]))
        needs = Resources(**{**record["resources"], "code_sha256": code})
        return Binary(key, str(folder), str(record["symbol"]), needs, record.get("compile_s"))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        # A file is missing, or another version of genkern wrote a valid record with other fields.
        return None


class FallbackStore(Protocol):
    """A read-only store that a cache falls back to, such as the file of `genkern.compile.shipped`."""

    def __contains__(self, key: str) -> bool: ...

    def files(self, key: str) -> Mapping[str, bytes] | None:
        """Return the files of an entry by name, not validated; None if there is no entry."""


class BinaryCache:
    """A folder of compiled kernels.

    Each entry is a folder named by its key. It holds the binary (`kernel.cubin` or `kernel.hsaco`), Triton's metadata
    (`kernel.json`), and genkern's record with the key and the sha256 of both files and of itself. An entry appears by
    rename, complete, so that any number of processes on any number of nodes can share the folder. An entry that is
    missing or damaged is copied from `behind` when it is requested, since a launch needs a folder.

    Several users can share the folder: umask and setgid decide who can read and write entries. `own` (by default a
        folder in the user's own cache) receives the entries that this user is not allowed to store in `folder`.
    """

    def __init__(self, folder: str | Path, behind: FallbackStore | None = None, own: Path | None = None) -> None:
        self.folder = Path(folder)
        self._behind = behind
        self._unborn = self.folder / ".unborn"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot create the cache folder {folder}: {error.strerror}; try --cache_dir") from None
        self._own_folder = own if own is not None else _own_folder()
        self._own: BinaryCache | None = None
        if _is_shared(self.folder):
            self._own = self._of_this_user(makes_it=False)

    @property
    def kept_elsewhere(self) -> Path | None:
        """The folder for entries that this user is not allowed to store in `folder`; None if all are stored there."""
        if os.access(self.folder, os.W_OK | os.X_OK):
            return None
        return self._own_folder if self._own_folder != self.folder else None

    def _of_this_user(self, *, makes_it: bool) -> BinaryCache | None:
        """Return this user's own cache, or None if this is that cache, or it has no place, or it does not exist and
        `makes_it` is False."""
        place = self._own_folder
        if place is None or place == self.folder or not (makes_it or place.is_dir()):
            return None
        try:
            return BinaryCache(place, own=place)
        except OutputError:
            return None

    def remove_abandoned(self) -> None:
        """Remove temporary folders that killed processes left behind while they were storing an entry."""
        with contextlib.suppress(OSError):
            for path in self._unborn.iterdir():
                age_s = time.time() - path.stat().st_mtime
                if age_s > _ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
                elif age_s < -_ABANDONED_S:
                    os.utime(path)

    def unborn(self, name: str) -> Path:
        """Create a folder of this name beside the entries that are being stored, and return it.

        `remove_abandoned` removes it if it has not been modified for an hour. Raises OSError.
        """
        folder = self._unborn / name
        folder.mkdir(parents=True)
        return folder

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def has_here(self, key: str) -> bool:
        """Return True if the folder itself, rather than the user's own cache, has something under `key`."""
        return self.path(key).exists()

    def offers(self, key: str) -> bool:
        """Return True if the layer behind the cache has an entry of `key`. The entry is not read: `get` may find it
        damaged."""
        return self._behind is not None and key in self._behind

    def get(self, key: str) -> Binary | Failure | None:
        """Return the entry of `key`, or None if it is missing or damaged, so that it is compiled again.

        Raises OutputError if an entry from the layer behind cannot be written to the folder.
        """
        folder = self.path(key)
        found = _checked(key, folder, lambda name: _bytes_of(f"{folder}/{name}"))
        if found is not None:
            _mark_used(folder)
        if found is None and self._own is not None:
            found = self._own.get(key)
        if found is None and self._behind is not None and (files := self._behind.files(key)) is not None:
            found = _checked(key, folder, files.__getitem__)
            if found is not None:
                return _placed(found, self._store(key, files))
        return found

    def take_over(self, key: str, files: Mapping[str, bytes]) -> Binary | Failure | None:
        """Store an entry of another cache and return it; None if its files are damaged. Raises OutputError."""
        if _checked(key, self.path(key), files.__getitem__) is None:
            return None
        self._store(key, files)
        return self.get(key)

    def is_damaged(self, key: str) -> bool:
        """Return True if the entry of `key` is not as it was stored.

        A missing or unreadable entry is not damaged, nor is an entry of another version of genkern whose resources have
        other fields, which `get` ignores. A record that lacks a field that every version writes is damaged.
        """
        folder = self.path(key)
        try:
            return _whole(key, lambda name: _bytes_of(f"{folder}/{name}")) is None
        except FileNotFoundError:
            # An entry is removed as a whole, so its folder tells whether it is being removed.
            return folder.exists()
        except OSError:
            return False
        except (KeyError, TypeError, ValueError, AttributeError):
            return True

    def remove(self, key: str) -> bool:
        """Remove the entry of `key` atomically, if there is one; return False if it could not be removed."""
        try:
            self._unborn.mkdir(exist_ok=True)
            self._set_aside(key)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _set_aside(self, key: str) -> None:
        """Rename an entry away, then delete it.

        A process may have one of its files open. Some network file systems keep such files, and the folder could not be
        removed in place.
        """
        aside = self._new_folder(key)
        try:
            os.rename(self.path(key), aside / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def files(self, key: str) -> dict[str, bytes]:
        """Return the files of the entry of `key`, by name. Raises OSError if there is none."""
        try:
            return {path.name: path.read_bytes() for path in sorted(self.path(key).iterdir())}
        except OSError:
            if self._own is None:
                raise
            return self._own.files(key)

    def put(
        self,
        key: str,
        spec: KernelSpec,
        symbol: str,
        resources: Resources,
        files: dict[str, bytes],
        compile_s: float | None = None,
    ) -> Binary:
        """Store a compiled kernel: the contents of `files` by name, and `compile_s`, the seconds that its compile took.

        Raises OutputError if the entry cannot be written, for example on a full disk.
        """
        record = {
            "key": key,
            "outcome": None,
            "symbol": symbol,
            "spec": asdict(spec),
            "resources": asdict(resources),
            "compile_s": compile_s,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        }
        folder = self._store(key, {**files, _RECORD: _sealed(record)})
        return Binary(key, str(folder), symbol, resources, compile_s)

    def put_failure(self, failure: Failure) -> None:
        """Store a kernel that the compiler refuses. Raises OutputError."""
        record = {"key": failure.key, "outcome": failure.outcome.value, "message": failure.message}
        self._store(failure.key, {_RECORD: _sealed(record)})

    def _store(self, key: str, files: Mapping[str, bytes]) -> Path:
        """Store an entry in the folder, or in the user's own cache if that is not allowed; return the entry's folder.

        Raises OutputError.
        """
        try:
            return self._stored_here(key, files)
        except OSError as error:
            if error.errno in _NOT_ALLOWED and (own := self._of_this_user(makes_it=True)) is not None:
                with contextlib.suppress(OutputError):
                    folder = own._store(key, files)
                    self._own = own
                    return folder
            if isinstance(error, _Stuck):
                said = f"cannot replace the damaged cache entry {self.path(key)}; delete it and run again"
                raise OutputError(said) from None
            raise OutputError(f"cannot write to the cache {self.folder}: {error.strerror}; try --cache_dir") from None

    def _stored_here(self, key: str, files: Mapping[str, bytes]) -> Path:
        """Store an entry in the folder and return its path. Raises OSError; _Stuck if a damaged entry cannot be
        replaced."""
        final = self.path(key)
        temporary = None
        try:
            final.parent.mkdir(exist_ok=True)
            self._unborn.mkdir(exist_ok=True)
            temporary = self._new_folder(key)
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            for _ in range(2):
                try:
                    os.rename(temporary, final)
                    return final
                except OSError:
                    # Another process stored the entry first, or a damaged entry is in its place.
                    if _checked(key, final, lambda name: _bytes_of(f"{final}/{name}")) is not None:
                        return final
                    with contextlib.suppress(OSError):
                        self._set_aside(key)
            raise _Stuck(errno.EACCES, os.strerror(errno.EACCES))
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _new_folder(self, key: str) -> Path:
        """Create a folder with a unique name, and the permissions that umask and setgid give it."""
        folder = self._unborn / f".{key[:8]}-{secrets.token_hex(8)}"
        folder.mkdir()
        return folder


class _Stuck(OSError):
    """A damaged entry cannot be replaced."""


def _own_folder() -> Path | None:
    own = user_cache_folder()
    return None if own is None else own / "binaries"


def _is_shared(folder: Path) -> bool:
    """Return True if other users may have written to `folder`, or this user cannot."""
    found = os.stat(folder)
    shared = found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(shared) or not os.access(folder, os.W_OK)


def _placed(found: Binary | Failure, folder: Path) -> Binary | Failure:
    return replace(found, path=str(folder)) if isinstance(found, Binary) else found
