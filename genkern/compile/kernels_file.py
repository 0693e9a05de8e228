"""`KernelsFile`: entries of the cache of compiled kernels in one file, from which a new machine can start.

The file is a zip archive with LZMA members. `index.json` has what the kernels were made for, and which block has which
keys. A block, the member `block_N`, holds some entries that are alike: a line of JSON with the names and lengths of the
files of each entry, and then the files. Each entry's record has its seal, as in the cache.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from genkern.compile.cache import without_compile_time
from genkern.errors import InputError
from genkern.file_io import open_regular, shown_path, write_bytes_whole
from genkern.kernels.cute.release import cute_version
from genkern.kernels.kernel import Target, compile_environment
from genkern.kernels.lowering import LOWERING

SUFFIX = ".kernels"
_INDEX, _SCHEMA = "index.json", 1
# Entries per block. In blocks of 8, the 2,116 kernels for an H200 (20 KB each) take 2.3 KB each, alone 5.5 KB; reading
# 48 of them at random takes 0.05 s.
_OF_A_BLOCK = 8
# Recently read blocks: entries of a block tend to be used together.
_BLOCKS_KEPT = 16
# Blocks are far smaller. A member that claims more was not written by genkern.
_MOST_BYTES = 64 * 2**20
_NAMES = ("genkern.json", "kernel.cubin", "kernel.hsaco", "kernel.json")
# Exceptions of zipfile, its decompressors and json for bytes that genkern did not write. RuntimeError stands for an
# encrypted member and, as its subclasses NotImplementedError and RecursionError, for an unknown compression and for
# JSON that is nested too deeply.
_DAMAGE = (
    *(zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError, OSError, RuntimeError, MemoryError),
    *(ValueError, LookupError, TypeError, OverflowError, AttributeError, AssertionError),
)
# The oldest time that a zip archive can store, so that equal kernels make equal files.
_THEN = (1980, 1, 1, 0, 0, 0)

# The files of one entry, by name.
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class MadeFor:
    """What the keys of kernels depend on in addition to each kernel itself.

    target: backend and architecture, such as "cuda 90"
    triton: release of Triton
    cute: release of CuTe DSL
    lowering: digest of genkern's own lowering
    environment: Triton's settings in the environment
    """

    target: str
    triton: str
    cute: str
    lowering: str
    environment: str

    @classmethod
    def here(cls, target: Target, triton_version: str) -> MadeFor:
        """Return the values of this process, for `target`."""
        environment = " ".join(f"{name}={value}" for name, value in compile_environment())
        return cls(f"{target.backend} {target.arch}", triton_version, cute_version(), str(LOWERING), environment)

    def mismatch(self, here: MadeFor) -> str:
        """Return in a few words why kernels made for `self` are not found by a run for `here`; "" if they are."""
        if self.target != here.target:
            return f"it is for {self.target}, this run for {here.target}: none of its kernels fit"
        told = []
        triton = (self.triton, self.lowering, self.environment) == (here.triton, here.lowering, here.environment)
        if self.triton != here.triton:
            told.append(f"Triton {self.triton}, here {here.triton}")
        elif not triton:
            told.append("another version of genkern" if self.lowering != here.lowering else "other settings of Triton")
        if self.cute != here.cute and self.target.startswith("cuda"):
            told.append(f"CuTe DSL {self.cute}, here {here.cute}")
        return f"made with {' and '.join(told)}: the kernels made with it are not found" if told else ""


def write_kernels(path: str, entries: Mapping[str, Files], made_for: MadeFor) -> int:
    """Write entries of the cache, by key, to one file, and return its length in bytes. Raises OutputError.

    Compile times are left out, so that equal kernels make equal files.
    """
    entries = {key: without_compile_time(files) for key, files in entries.items()}
    keys = sorted(entries, key=lambda key: (_symbol(entries[key]), key))
    blocks = [keys[start : start + _OF_A_BLOCK] for start in range(0, len(keys), _OF_A_BLOCK)]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        index = {"schema": _SCHEMA, "made_for": asdict(made_for), "blocks": blocks}
        archive.writestr(_member(_INDEX), json.dumps(index, separators=(",", ":")))
        for number, block in enumerate(blocks):
            archive.writestr(_member(f"block_{number}"), _block({key: entries[key] for key in block}))
    write_bytes_whole(path, data := buffer.getvalue())
    return len(data)


class KernelsFile:
    """A file of compiled kernels, of which only the requested blocks are read.

    It may be used from any thread and from any forked process.
    """

    def __init__(self, path: str) -> None:
        """Read the index. Raises InputError if the file cannot be read or is not a file of compiled kernels."""
        self.path = path
        self._lock = threading.Lock()
        self._open: tuple[int, zipfile.ZipFile] | None = None
        self._kept: dict[int, dict[str, dict[str, bytes]]] = {}
        try:
            with self._lock:
                index = json.loads(self._read(_INDEX))
            if (schema := index["schema"]) != _SCHEMA:
                raise InputError(f"{shown_path(path)} is of another version of genkern (schema {schema!r:.20})")
            made_for = {name: str(value) for name, value in index["made_for"].items()}
            self.made_for = MadeFor(**made_for)
            self._blocks = {str(key): number for number, keys in enumerate(index["blocks"]) for key in keys}
        except InputError:
            raise
        except FileNotFoundError:
            raise InputError(f"{shown_path(path)}: no such file; `genkern kernels -o FILE` writes one") from None
        except IsADirectoryError:
            raise InputError(f"{shown_path(path)} is a folder; name a file of compiled kernels") from None
        except PermissionError as error:
            raise InputError(f"{shown_path(path)}: {error.strerror}") from None
        except _DAMAGE:
            raise InputError(
                f"{shown_path(path)} is not a file of compiled kernels (`genkern kernels` writes them)"
            ) from None

    def __contains__(self, key: str) -> bool:
        return key in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def files(self, key: str) -> Files | None:
        """Return the files of the entry of `key`, not validated; None if there is no entry, or it cannot be read."""
        if (number := self._blocks.get(key)) is None:
            return None
        with self._lock:
            if number not in self._kept:
                while len(self._kept) >= _BLOCKS_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[number] = {}
                with contextlib.suppress(*_DAMAGE):
                    self._kept[number] = dict(_entries(self._read(f"block_{number}")))
            return self._kept[number].get(key)

    def _read(self, member: str) -> bytes:
        # Forked processes that share an open file would share its position.
        if self._open is None or self._open[0] != os.getpid():
            # The archive closes the file.
            self._open = os.getpid(), zipfile.ZipFile(open(self.path, "rb", opener=open_regular))  # noqa: SIM115
        archive = self._open[1]
        if archive.getinfo(member).file_size > _MOST_BYTES:
            raise ValueError(member)
        return archive.read(member)


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _THEN)
    info.compress_type = zipfile.ZIP_LZMA
    return info


def _block(entries: Mapping[str, Files]) -> bytes:
    lengths = {key: {name: len(data) for name, data in files.items()} for key, files in entries.items()}
    parts = [data for files in entries.values() for data in files.values()]
    return b"".join([json.dumps(lengths, separators=(",", ":")).encode(), b"\n", *parts])


def _entries(block: bytes) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the entries of a block, by key. Raises one of _DAMAGE for a damaged block."""
    head, _, rest = block.partition(b"\n")
    start = 0
    for key, lengths in json.loads(head).items():
        files: dict[str, bytes] = {}
        for name, length in lengths.items():
            if name not in _NAMES or type(length) is not int or length < 0:
                raise ValueError(name)
            files[name], start = rest[start : start + length], start + length
        yield key, files


def _symbol(files: Files) -> str:
    """Return the kernel's symbol, by which entries are sorted: kernels of one name have similar machine code."""
    with contextlib.suppress(*_DAMAGE):
        return str(json.loads(files["kernel.json"]).get("name", ""))
    return ""
