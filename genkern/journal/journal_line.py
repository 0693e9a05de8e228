"""One line of a journal: a fact as compact JSON that ends with its own checksum."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

_CRC = b',"crc":'
_AFTER = b',"after":'
_ENDS = re.compile(rb'(?:,"after":([0-9]{1,10}))?,"crc":([0-9]{1,10})\}\Z')
# Limit of an unpacked value, far above what the configs of any size need.
_MOST_BYTES = 2**26
# Longer values are written compressed: lists of thousands of configs and times are for programs to read.
_PLAIN_BYTES = 1000
_HEADER = "header"


def journal_line(fact: str, value: Any, problem: int | None = None) -> bytes:
    """Return one fact as a line of a journal. `problem`: the problem's number.

    A long value is stored under `packed`: its JSON, deflated (RFC 1951), in base64. The header is never packed, since
    other versions read it. The last key, `crc`, is the CRC-32 (zlib) of the line without it, which reveals every change
    of a single bit or of a run of up to 32 bits.
    """
    of = {} if problem is None else {"problem": problem}
    text = _compact(value)
    if len(text) > _PLAIN_BYTES and fact != _HEADER:
        return _sealed(_compact({"fact": fact, **of, "packed": _packed(text)})) + b"\n"
    return _sealed(_compact({"fact": fact, **of})[:-1] + b',"value":' + text + b"}") + b"\n"


def entry_of(line: bytes) -> dict[str, Any]:
    """Return the content of a line (without its newline), with `value` unpacked.

    Raises ValueError if the line is damaged.
    """
    require_whole(line)
    entry: dict[str, Any] = json.loads(line)
    if "packed" in entry:
        entry["value"] = json.loads(_unpacked(entry.pop("packed")))
    return entry


def require_whole(line: bytes) -> None:
    """Raise ValueError if a line (without its newline) is damaged."""
    text, _, _ = line.rpartition(_CRC)
    if line != _sealed(text + b"}"):
        raise ValueError("the checksum does not match")


def chained_line(line: bytes, checksum: int) -> bytes:
    """Return the line, extended by the checksum of the line before it. Both are without newline."""
    return _sealed(b"%b%b%d}" % (line.rpartition(_CRC)[0], _AFTER, checksum))


def checksums(line: bytes) -> tuple[int | None, int]:
    """Return the checksum of the line before (None in files of earlier releases) and the line's own.

    Raises ValueError.
    """
    if (found := _ENDS.search(line)) is None:
        raise ValueError("a line without a checksum")
    return int(found[1]) if found[1] else None, int(found[2])


def unsealed_header(line: bytes) -> dict[str, Any]:
    """Return the header in a line, whatever its checksum; {} if it holds none."""
    try:
        entry = json.loads(line)
        return dict(entry["value"]) if entry["fact"] == _HEADER else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def _sealed(text: bytes) -> bytes:
    return b"%b%b%d}" % (text[:-1], _CRC, zlib.crc32(text))


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _packed(text: bytes) -> str:
    # Without zlib's header and checksum, since the line has a checksum.
    deflate = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(text) + deflate.flush()).decode("ascii")


def _unpacked(packed: str) -> bytes:
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        text = inflate.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflate.eof or inflate.unused_data:
        raise ValueError("cut short, or longer than any value")
    return text
