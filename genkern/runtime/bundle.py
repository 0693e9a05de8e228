"""Bundle: winners for any number of sizes, formats and devices, with all that launches them, in one file.

A zip archive: `manifest.json`, and each binary under its sha256, packed by LZMA. The archive's comment is the sha256 of
all that stands before it, so that no byte of the file can change unseen. Nothing in it is executed or unpickled before
that digest, and then its form, have been checked; binaries go to the driver.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from genkern import __version__
from genkern.errors import OutputError, ResultsError
from genkern.files import read_bytes, regular, require_absent, shown_path, write_bytes_whole
from genkern.runtime.packed import Contents, PackedWinner, from_data, to_data

# Of the manifest; another number means other fields, or other meanings.
SCHEMA = 4
SUFFIX = ".genkern"
_MANIFEST = "manifest.json"
_ZIP = b"PK\3\4"
# Of the first member's name, in a zip archive.
_NAME_AT = 30
_SEAL = re.compile(rb"genkern sha256=([0-9a-f]{64})")
_SEAL_BYTES = len("genkern sha256=") + 64
# Of one bundle; 10,000 winners take about 50 MB.
MOST_BYTES = 2**30
# Unpacked: far above any manifest (10,000 winners take some 30 MB), and any kernel.
_MOST_MANIFEST, _MOST_BINARY = 2**26, 2**26
# So much a member may unpack to whatever it takes, and above that so many times what it takes: winners that differ in a
# few numbers alone come to half of it.
_PLAIN_BYTES, _MOST_PACKING = 2**20, 500
# Bytes of a manifest for each list and mapping in it, of which each takes up to 232 bytes once it is read.
_LEAST_SPREAD = 16
# Of LZMA's; it has 8 MiB as genkern packs.
_MOST_DICTIONARY = 2**26
# Of 64 bits, with a sign. Older Pythons take a time that grows with the square.
_MOST_DIGITS = 20
# LZMA packs up to 7,000 bytes into one.
_PIECE_BYTES = 4096
# What zipfile raises for members that genkern does not write: damaged, encrypted, packed in another way.
_UNREADABLE = (
    *(KeyError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error),
    *(RuntimeError, EOFError, OSError, ValueError),
)


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory. Binaries are unpacked when they are asked for."""

    where: str
    contents: Contents
    _archive: zipfile.ZipFile

    @property
    def winners(self) -> tuple[PackedWinner, ...]:
        return self.contents.winners

    def image(self, sha256: str) -> bytes:
        """The file of a binary. Raises ResultsError where it is not what its name says."""
        data = _member(self._archive, sha256, _MOST_BINARY, self.where)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ResultsError(f"{self.where}: binary {sha256[:12]} is damaged: pack it again")
        return data


def write_bundle(path: str, contents: Contents, images: Mapping[str, bytes]) -> int:
    """Write a bundle whole, and return its size in bytes; `images` has the file of each binary by its sha256.

    Equal contents give equal bytes. Raises OutputError.
    """
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        manifest = {"schema": SCHEMA, "genkern": __version__, **to_data(contents)}
        for name, data in _members(manifest, contents, images):
            # The date is that of zip's first day, so that it says nothing.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_LZMA)
        archive.comment = b"-" * _SEAL_BYTES
    body = target.getvalue()[:-_SEAL_BYTES]
    write_bytes_whole(path, body + b"genkern sha256=" + hashlib.sha256(body).hexdigest().encode())
    return len(body) + _SEAL_BYTES


def _members(
    manifest: Mapping[str, object], contents: Contents, images: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    yield _MANIFEST, json.dumps(manifest, separators=(",", ":"), sort_keys=True).encode()
    for sha256 in sorted(contents.binaries):
        yield sha256, images[sha256]


def is_bundle(path: str) -> bool:
    """Whether the file begins as a zip archive does: of what genkern reads, bundles alone do."""
    return _start_of(path).startswith(_ZIP)


def holds_manifest(path: str) -> bool:
    """Whether the file begins as write_bundle has it, and not as any other zip archive: it may be damaged behind."""
    start = _start_of(path)
    return start.startswith(_ZIP) and start[_NAME_AT:] == _MANIFEST.encode()


def require_bundle_or_none(path: str, overwrite: bool) -> None:
    """Raise OutputError where another file than a bundle would be replaced, or one that nobody said may be."""
    require_absent(path, overwrite)
    if os.path.isfile(path) and os.path.getsize(path) and not holds_manifest(path):
        raise OutputError(f"{shown_path(path)} is no bundle, which alone --overwrite replaces; name another -o")


def _start_of(path: str) -> bytes:
    try:
        with open(path, "rb", opener=regular) as file:
            return file.read(_NAME_AT + len(_MANIFEST))
    except OSError:
        return b""


def read_bundle(path: str) -> Bundle:
    """The bundle in `path`. Raises ResultsError (one line) unless every byte is as it was written."""
    return parse_bundle(bundle_bytes(path), shown_path(path))


def bundle_bytes(path: str) -> bytes:
    """What is in the file, for parse_bundle. Raises ResultsError where it cannot be read."""
    return read_bytes(path, ResultsError, MOST_BYTES)


def parse_bundle(data: bytes, where: str) -> Bundle:
    """The bundle in `data`, which came from `where`. Raises ResultsError as read_bundle does."""
    seal = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if not data.startswith(_ZIP):
        raise ResultsError(f"{where} is no bundle: `genkern pack RESULTS -o FILE` makes one, *.genkern")
    if seal is None:
        raise ResultsError(f"{where}: its end is missing, or it is no bundle: pack it again")
    if hashlib.sha256(data[:-_SEAL_BYTES]).hexdigest().encode() != seal[1]:
        raise ResultsError(f"{where} is damaged: its bytes are not those that were written; pack it again")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise ResultsError(f"{where} is damaged ({error}): pack it again") from None
    text = _member(archive, _MANIFEST, _MOST_MANIFEST, where)
    if text.count(b"[") + text.count(b"{") > max(len(text), _PLAIN_BYTES) / _LEAST_SPREAD:
        raise ResultsError(f"{where}: its manifest is lists of nothing: pack it again")
    try:
        manifest = json.loads(text, parse_int=_number)
    except (ValueError, RecursionError):
        raise ResultsError(f"{where}: its manifest is not JSON: pack it again") from None
    if not isinstance(manifest, dict) or manifest.pop("schema", None) != SCHEMA:
        maker = repr(manifest.get("genkern"))[:20] if isinstance(manifest, dict) else "another genkern"
        raise ResultsError(f"{where} was packed by genkern {maker} in another schema than {SCHEMA}: pack it again")
    manifest.pop("genkern", None)
    try:
        contents = from_data(manifest)
    except ResultsError as error:
        raise ResultsError(f"{where}: {error}") from None
    except RecursionError:
        raise ResultsError(f"{where}: its manifest is nested too deep: pack it again") from None
    names = set(archive.namelist())
    if missing := set(contents.binaries) - names:
        raise ResultsError(f"{where} lacks binary {min(missing)[:12]}: pack it again")
    return Bundle(where, contents, archive)


def _dictionary_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """What LZMA keeps of what it has unpacked, and allocates first. Raises struct.error, ValueError."""
    assert archive.fp is not None
    if info.compress_type != zipfile.ZIP_LZMA:
        return 0
    archive.fp.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", archive.fp.read(4))
    # Behind both: the version of LZMA, the length of its properties, and how it models bits.
    archive.fp.seek(name + extra + 5, io.SEEK_CUR)
    (found,) = struct.unpack("<I", archive.fp.read(4))
    return int(found)


def _number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number that nothing is as large as")
    return int(digits)


def _member(archive: zipfile.ZipFile, name: str, most: int, where: str) -> bytes:
    try:
        info = archive.getinfo(name)
        if (taken := _dictionary_bytes(archive, info)) > _MOST_DICTIONARY:
            raise ResultsError(f"{where}: {name[:12]} would take {taken >> 20} MiB to unpack")
        if info.file_size <= min(most, max(_PLAIN_BYTES, _MOST_PACKING * min(info.compress_size, archive.start_dir))):
            with archive.open(name) as member:
                # zipfile unpacks all that it has read, whatever size the directory says.
                return b"".join(iter(lambda: member.read(_PIECE_BYTES), b""))
    except _UNREADABLE as error:
        raise ResultsError(f"{where}: {name[:12]} cannot be read ({error}): pack it again") from None
    raise ResultsError(f"{where}: {name[:12]} is larger than anything that genkern packs")
