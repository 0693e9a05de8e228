"""BinaryCache: compiled kernels by content address, shared by sizes, runs and nodes; never Triton's own cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from genkern.errors import OutputError
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.kernel import KernelSpec

_RECORD = "genkern.json"
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
    """Note in the time of an entry's record that it is used, for `genkern cache`; in a cache to read only nobody does.

    Times of access would say so by themselves, but few machines keep them.
    """
    path = f"{folder}/{_RECORD}"
    with contextlib.suppress(OSError):
        if time.time() - os.stat(path).st_mtime > MARKED_EVERY_S:
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


def _whole(key: str, read: Callable[[str], bytes]) -> dict[str, Any] | None:
    """The record of an entry whose files `read` has and are as they were stored; None when one is not.

    Raises OSError where a file cannot be read, and what a record of other fields is the cause of.
    """
    record = _unsealed(read(_RECORD))
    # Of an older genkern an entry does not say its key.
    if record is None or record.get("key", key) != key:
        return None
    digests = record["sha256"] if record["outcome"] is None else {}
    if any(hashlib.sha256(read(name)).hexdigest() != digest for name, digest in digests.items()):
        return None
    return record


def _checked(key: str, folder: Path, read: Callable[[str], bytes]) -> Binary | Failure | None:
    """What an entry is that lies, or is to lie, in `folder`, and whose files `read` has; None when it is damaged."""
    try:
        if (record := _whole(key, read)) is None:
            return None
        if record["outcome"] is not None:
            return Failure(key, Outcome(record["outcome"]), str(record["message"]))
        needs, compile_s = Resources(**record["resources"]), record.get("compile_s")
        return Binary(key, str(folder), str(record["symbol"]), needs, compile_s)
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
    whole, by rename, so that any number of processes on any number of nodes may share the folder. What is not there, or
    damaged, is taken over from `behind` when it is asked for: a launch needs a folder.
    """

    def __init__(self, folder: str | Path, behind: Layer | None = None) -> None:
        self.folder = Path(folder)
        self._behind = behind
        self._unborn = self.folder / ".unborn"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot create the cache folder {folder}: {error.strerror}; try --cache_dir") from None

    def remove_abandoned(self) -> None:
        """Remove what processes that were killed in the middle of storing an entry have left behind."""
        with contextlib.suppress(OSError):
            for path in self._unborn.iterdir():
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)

    def unborn(self, name: str) -> Path:
        """A new folder of this name beside what is being stored, which is removed when nobody has touched it for an
        hour. Raises OSError.
        """
        folder = self._unborn / name
        folder.mkdir(parents=True)
        return folder

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / key

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
        if found is None and self._behind is not None and (files := self._behind.files(key)) is not None:
            found = _checked(key, folder, files.__getitem__)
            if found is not None:
                self._store(key, files)
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
        aside = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=self._unborn))
        try:
            os.rename(self.path(key), aside / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def files(self, key: str) -> dict[str, bytes]:
        """The files of the entry of `key`, by name. Raises OSError where there is none."""
        return {path.name: path.read_bytes() for path in sorted(self.path(key).iterdir())}

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
        self._store(key, {**files, _RECORD: _sealed(record)})
        return Binary(key, str(self.path(key)), symbol, resources, compile_s)

    def put_failure(self, failure: Failure) -> None:
        """Remember a kernel that the compiler refuses."""
        record = {"key": failure.key, "outcome": failure.outcome.value, "message": failure.message}
        self._store(failure.key, {_RECORD: _sealed(record)})

    def _store(self, key: str, files: Mapping[str, bytes]) -> None:
        final = self.path(key)
        temporary = None
        try:
            final.parent.mkdir(exist_ok=True)
            self._unborn.mkdir(exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=self._unborn))
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            for _ in range(2):
                try:
                    os.rename(temporary, final)
                    return
                except OSError:
                    # Somebody stored it first, or the entry that is there is damaged.
                    if _checked(key, final, lambda name: _bytes_of(f"{final}/{name}")) is not None:
                        return
                    with contextlib.suppress(OSError):
                        self._set_aside(key)
            raise OutputError(f"cannot replace the damaged cache entry {final}; delete it and run again")
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"cannot write to the cache {self.folder}: {error.strerror}; try --cache_dir") from None
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
