"""Bundle: winners of any number of sizes, formats and devices in one file, with everything that launches them.

A bundle is a zip archive with `manifest.json` and each binary under its sha256, compressed by LZMA. The archive's
comment is the sha256 of all bytes before it, so that no changed byte goes unnoticed. Nothing in the file is executed or
unpickled; binaries are passed to the driver after the digest and the manifest have been checked.
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
from genkern.file_io import open_regular, read_bytes, require_absent, shown_path, write_bytes_whole
from genkern.result.result import Result
from genkern.runtime.bundles.records import Contents, from_data, to_data

# Version of the manifest: another number means that fields or their meanings differ.
SCHEMA = 4
SUFFIX = ".genkern"
_MANIFEST = "manifest.json"
_ZIP = b"PK\3\4"
# Offset of the first member's name in a zip archive.
_NAME_AT = 30
_SEAL = re.compile(rb"genkern sha256=([0-9a-f]{64})")
_SEAL_BYTES = len("genkern sha256=") + 64
# Largest bundle; 10,000 winners take about 50 MB.
MOST_BYTES = 2**30
# Largest unpacked sizes, far above any manifest (10,000 winners take about 30 MB) and any kernel.
_MOST_MANIFEST, _MOST_BINARY = 2**26, 2**26
# A member may unpack to the first number of bytes, or to its packed size times the second number. Winners that differ
# in only a few numbers compress by half of that factor.
_PLAIN_BYTES, _MOST_PACKING = 2**20, 500
# A manifest must have at least this number of bytes per list or mapping, each of which takes up to 232 bytes once it is
# parsed. A manifest of less than _PLAIN_BYTES counts as one of _PLAIN_BYTES.
_LEAST_SPREAD = 16
# Largest dictionary of LZMA in bytes; genkern itself packs with 8 MiB.
_MOST_DICTIONARY = 2**26
# Digits of a signed 64-bit integer. Older Pythons parse integers in a time that grows with the square of their digits.
_MOST_DIGITS = 20
# Bytes read at a time: LZMA packs up to 7,000 bytes into one.
_PIECE_BYTES = 4096
# What zipfile raises for members that genkern does not write: damaged, encrypted, or compressed in another way.
_UNREADABLE = (
    *(KeyError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error),
    *(RuntimeError, EOFError, OSError, ValueError),
)


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory. Binaries are unpacked on demand."""

    where: str
    contents: Contents
    _archive: zipfile.ZipFile

    @property
    def winners(self) -> tuple[Result, ...]:
        return self.contents.winners

    def image(self, sha256: str) -> bytes:
        """Return the content of a binary's file. Raise ResultsError if its digest is not `sha256`."""
        data = _member(self._archive, sha256, _MOST_BINARY, self.where)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ResultsError(f"{self.where}: binary {sha256[:12]} is damaged: pack it again")
        return data


def write_bundle(path: str, contents: Contents, images: Mapping[str, bytes]) -> int:
    """Write a bundle atomically, and return its size in bytes. `images` has the file of each binary by its sha256.

    Equal contents give equal bytes. Raises OutputError.
    """
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        manifest = {"schema": SCHEMA, "genkern": __version__, **to_data(contents)}
        for name, data in _members(manifest, contents, images):
            # ZipInfo's default date, so that the bytes do not depend on the time.
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
    """Return True if the file starts like a zip archive. Of the files that genkern reads, only bundles do."""
    return _start_of(path).startswith(_ZIP)


def holds_manifest(path: str) -> bool:
    """Return True if the file starts as write_bundle starts it, unlike other zip archives. The rest may be damaged."""
    start = _start_of(path)
    return start.startswith(_ZIP) and start[_NAME_AT:] == _MANIFEST.encode()


def require_bundle_or_none(path: str, overwrite: bool) -> None:
    """Raise OutputError if writing `path` would replace a file that is no bundle, or a bundle without `overwrite`."""
    require_absent(path, overwrite)
    if os.path.isfile(path) and os.path.getsize(path) and not holds_manifest(path):
        raise OutputError(f"{shown_path(path)} is no bundle, and --overwrite replaces only bundles; name another -o")


def _start_of(path: str) -> bytes:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read(_NAME_AT + len(_MANIFEST))
    except OSError:
        return b""


def read_bundle(path: str) -> Bundle:
    """Return the bundle in the file `path`. Raise ResultsError (one line) unless every byte is as it was written."""
    return parse_bundle(bundle_bytes(path), shown_path(path))


def bundle_bytes(path: str) -> bytes:
    """Return the bytes of the file, for parse_bundle. Raise ResultsError if it cannot be read."""
    return read_bytes(path, ResultsError, MOST_BYTES)


def parse_bundle(data: bytes, where: str) -> Bundle:
    """Return the bundle in `data`; `where` names its source in messages. Raises ResultsError as read_bundle does."""
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
        raise ResultsError(f"{where}: its manifest is malformed (too many lists and mappings): pack it again")
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
    """Return the size of the dictionary that LZMA allocates to unpack the member; 0 if LZMA did not pack it.

    Raises struct.error or ValueError.
    """
    assert archive.fp is not None
    if info.compress_type != zipfile.ZIP_LZMA:
        return 0
    archive.fp.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", archive.fp.read(4))
    # After name and extra field: LZMA's version, the length of its properties, and one byte of lc, lp and pb.
    archive.fp.seek(name + extra + 5, io.SEEK_CUR)
    (found,) = struct.unpack("<I", archive.fp.read(4))
    return int(found)


def _number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number with more than {_MOST_DIGITS} digits")
    return int(digits)


def _member(archive: zipfile.ZipFile, name: str, most: int, where: str) -> bytes:
    try:
        info = archive.getinfo(name)
        if (taken := _dictionary_bytes(archive, info)) > _MOST_DICTIONARY:
            raise ResultsError(f"{where}: {name[:12]} would take {taken >> 20} MiB to unpack")
        if info.file_size <= min(most, max(_PLAIN_BYTES, _MOST_PACKING * min(info.compress_size, archive.start_dir))):
            with archive.open(name) as member:
                # A loop, since zipfile unpacks everything that it has read at once, whatever size the directory
                # declares.
                return b"".join(iter(lambda: member.read(_PIECE_BYTES), b""))
    except _UNREADABLE as error:
        raise ResultsError(f"{where}: {name[:12]} cannot be read ({error}): pack it again") from None
    raise ResultsError(f"{where}: {name[:12]} is larger than anything that genkern packs")
