"""BinaryCache: compiled kernels by content address, shared by sizes, runs and nodes; never Triton's own cache."""

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

from genkern.errors import OutputError
from genkern.farm.binary.code_object import code_sha256
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.kernel import KernelSpec
from genkern.private import own_cache

_RECORD = "genkern.json"
_BINARIES = ("kernel.cubin", "kernel.hsaco")
# What says that another user's folder, or one that is read-only, takes no entry.
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
# Storing takes milliseconds, on a slow network seconds. The age tells the dead from the living on every node.
_ABANDONED_S = 3600.0
# How exactly an entry says when it was used last: a read that marks it costs a network file system a round trip.
MARKED_EVERY_S = 3600.0


@dataclass(frozen=True)
class Failure:
    """A kernel that cannot be compiled, remembered so that it is tried once only.

    Where the compiler was ended `from_outside` (by a signal, for want of memory), that says nothing of the kernel.
    """

    key: str
    outcome: Outcome
    message: str
    from_outside: bool = False


def _bytes_of(path: str) -> bytes:
    # A third of the time of Path.read_bytes, thousands of times a size.
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _mark_used(folder: Path) -> None:
    """Set the modification time of an entry's record, from which `genkern cache` tells when it was used last, to now.

    In a read-only cache the time stays. Times of access would do, but few machines keep them.
    """
    path = f"{folder}/{_RECORD}"
    with contextlib.suppress(OSError):
        # A time in the future, by a clock that was wrong, would keep the entry for ever.
        if abs(time.time() - os.stat(path).st_mtime) > MARKED_EVERY_S:
            os.utime(path)


def _sealed(record: dict[str, Any]) -> bytes:
    """The record with its own sha256 as its last value, so that no damaged one is believed."""
    return json.dumps({**record, "seal": hashlib.sha256(json.dumps(record).encode()).hexdigest()}).encode()


def _unsealed(data: bytes) -> dict[str, Any] | None:
    """The record without its seal; None when it is damaged."""
    try:
        record = json.loads(data)
        if isinstance(record, dict) and record.pop("seal", None) is not None and data == _sealed(record):
            return record
    except (ValueError, RecursionError):
        pass
    return None


def without_compile_time(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The files of an entry without the seconds of its compile; a damaged entry as it is."""
    if (record := _unsealed(files.get(_RECORD, b""))) is None or record.get("compile_s") is None:
        return files
    return {**files, _RECORD: _sealed({**record, "compile_s": None})}


def _whole(key: str, read: Callable[[str], bytes]) -> tuple[dict[str, Any], str | None] | None:
    """The record of an entry whose files `read` returns and the digest of its machine code, computed from the bytes;
    None if a file is not as it was stored, or has other code than the record says.

    Raises OSError if a file cannot be read, and KeyError, TypeError, ValueError or AttributeError for a record of other
    fields.
    """
    record = _unsealed(read(_RECORD))
    # An entry of an older genkern does not say its key.
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
    """The entry that lies, or is to lie, in `folder`, and whose files `read` returns; None if it is damaged."""
    try:
        if (found := _whole(key, read)) is None:
            return None
        record, code = found
        if record["outcome"] is not None:
            return Failure(key, Outcome(record["outcome"]), str(record["message"]))
        needs = Resources(**{**record["resources"], "code_sha256": code})
        return Binary(key, str(folder), str(record["symbol"]), needs, record.get("compile_s"))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        # A file is away, or another version of genkern wrote other fields: the seal is whole.
        return None


class Layer(Protocol):
    """Entries that lie behind those of a cache, by key: `genkern.farm.shipped` has such a file."""

    def __contains__(self, key: str) -> bool: ...

    def files(self, key: str) -> Mapping[str, bytes] | None:
        """The files of an entry by name, which may be damaged; None where there is none."""


class BinaryCache:
    """A folder of compiled kernels.

    Each entry is a folder named by its key: the binary (`kernel.cubin` or `kernel.hsaco`), Triton's
    metadata (`kernel.json`) and genkern's record with its key, the sha256 of both and of itself. An entry appears
    whole, by rename, so that any number of processes on any number of nodes may share the folder. If an entry is not
    there, or damaged, it is copied from `behind` when it is asked for: a launch needs a folder.

    Users may share the folder: umask and setgid decide who can read and write entries. `own` (by default in the user's
    own cache) has the entries that this user could not store there.
    """

    def __init__(self, folder: str | Path, behind: Layer | None = None, own: Path | None = None) -> None:
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
        """The folder that has, and gets, the entries that this user may not store in `folder`; None if all go there."""
        if os.access(self.folder, os.W_OK | os.X_OK):
            return None
        return self._own_folder if self._own_folder != self.folder else None

    def _of_this_user(self, *, makes_it: bool) -> BinaryCache | None:
        """The cache of this user alone; None if this is it, if there is no place for it, or it is not there yet."""
        place = self._own_folder
        if place is None or place == self.folder or not (makes_it or place.is_dir()):
            return None
        try:
            return BinaryCache(place, own=place)
        except OutputError:
            return None

    def remove_abandoned(self) -> None:
        """Remove what processes that were killed in the middle of storing an entry have left behind."""
        with contextlib.suppress(OSError):
            for path in self._unborn.iterdir():
                age_s = time.time() - path.stat().st_mtime
                if age_s > _ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
                elif age_s < -_ABANDONED_S:
                    os.utime(path)

    def unborn(self, name: str) -> Path:
        """A new folder of this name beside what is being stored, which is removed when nobody has touched it for an
        hour. Raises OSError.
        """
        folder = self._unborn / name
        folder.mkdir(parents=True)
        return folder

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def has_here(self, key: str) -> bool:
        """Whether the folder itself, rather than the user's own cache, has something under `key`."""
        return self.path(key).exists()

    def offers(self, key: str) -> bool:
        """Whether what lies behind has an entry of `key`, whatever `get` then thinks of it: nothing is read for it."""
        return self._behind is not None and key in self._behind

    def get(self, key: str) -> Binary | Failure | None:
        """The entry of `key`; None when there is none or when it is damaged (then it is compiled again).

        Raises OutputError where one that lies behind cannot be written to the folder.
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
        """Store an entry of another cache, and return it; None where its files are damaged. Raises OutputError."""
        if _checked(key, self.path(key), files.__getitem__) is None:
            return None
        self._store(key, files)
        return self.get(key)

    def is_damaged(self, key: str) -> bool:
        """Whether the entry of `key` is not as it was stored; one that is gone, or cannot be read just now, is none.

        One of another version of genkern, for which `get` has no use, may be whole.
        """
        folder = self.path(key)
        try:
            return _whole(key, lambda name: _bytes_of(f"{folder}/{name}")) is None
        except FileNotFoundError:
            # One that is being removed goes as a whole.
            return folder.exists()
        except OSError:
            return False
        except (KeyError, TypeError, ValueError, AttributeError):
            return True

    def remove(self, key: str) -> bool:
        """Take the entry of `key` away, for everybody at the same moment; False where it stays."""
        try:
            self._unborn.mkdir(exist_ok=True)
            self._set_aside(key)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _set_aside(self, key: str) -> None:
        """A file of it may be open: where a network file system keeps that, a folder cannot be removed in its place."""
        aside = self._new_folder(key)
        try:
            os.rename(self.path(key), aside / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def files(self, key: str) -> dict[str, bytes]:
        """The files of the entry of `key`, by name. Raises OSError if there is none."""
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
        """Store one compiled kernel; `files` are its contents by name, `compile_s` what its compile took.

        Raises OutputError on a full disk.
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
        """Remember a kernel that the compiler refuses."""
        record = {"key": failure.key, "outcome": failure.outcome.value, "message": failure.message}
        self._store(failure.key, {_RECORD: _sealed(record)})

    def _store(self, key: str, files: Mapping[str, bytes]) -> Path:
        """Store an entry, here or in the user's own cache; returns its folder. Raises OutputError."""
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
        """Raises OSError, _Stuck if a damaged entry cannot be replaced."""
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
                    # Another process stored it first, or the entry that is there is damaged.
                    if _checked(key, final, lambda name: _bytes_of(f"{final}/{name}")) is not None:
                        return final
                    with contextlib.suppress(OSError):
                        self._set_aside(key)
            raise _Stuck(errno.EACCES, os.strerror(errno.EACCES))
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _new_folder(self, key: str) -> Path:
        """A folder of a name that no other process has, with the permissions that umask and setgid give it."""
        folder = self._unborn / f".{key[:8]}-{secrets.token_hex(8)}"
        folder.mkdir()
        return folder


class _Stuck(OSError):
    """A damaged entry cannot be replaced."""


def _own_folder() -> Path | None:
    own = own_cache()
    return None if own is None else own / "binaries"


def _is_shared(folder: Path) -> bool:
    """Whether other users may have made what lies in `folder`, or it cannot be written to."""
    found = os.stat(folder)
    shared = found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(shared) or not os.access(folder, os.W_OK)


def _placed(found: Binary | Failure, folder: Path) -> Binary | Failure:
    return replace(found, path=str(folder)) if isinstance(found, Binary) else found
