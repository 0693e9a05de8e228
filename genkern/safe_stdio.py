"""Standard output and standard error that do not end the program if they cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import select
from typing import Any, TextIO


def safe_stream(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return `stream` or a replacement that ignores a reader that leaves, and accepts any text.

    If the reader (a pager, head) has left or there is no space, further output is discarded (`lost`). A stream that was
    closed before the program started is None in Python; its output is discarded from the start. Bytes in file names
    that no encoding represents are escaped. A stream that is not one of this process's descriptors (a test's stream) is
    only changed to escape them.
    """
    if isinstance(stream, io.TextIOWrapper) and isinstance(getattr(stream.buffer, "raw", None), _SafeOutput):
        return stream
    if stream is None:
        encoding, line_buffering = "utf-8", False
    elif isinstance(stream, io.TextIOWrapper) and _descriptor(stream) == descriptor:
        stream.flush()
        encoding, line_buffering = stream.encoding, stream.line_buffering
    else:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        return stream
    buffer = io.BufferedWriter(_SafeOutput(descriptor, "wb", closefd=False))
    return io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=line_buffering)


def write_error(stream: TextIO) -> str:
    """Return why flushed output of this stream was lost; "" if none was, or if its reader has left."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.reason if isinstance(raw, _SafeOutput) else ""


def has_no_reader(stream: TextIO) -> bool:
    """Return True if the reader of this stream, a pipe or socket, has closed its end.

    Further output is then useless.
    """
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(raw, _SafeOutput):
        return False
    poll = select.poll()
    poll.register(raw.fileno(), 0)
    return raw.reader_left or any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class _SafeOutput(io.FileIO):
    """Writes to its descriptor while it has a reader and space; `reason` is the error if there is no space."""

    reason = ""
    reader_left = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                self.reader_left = True
            else:
                self.reason = error.strerror or type(error).__name__
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def _descriptor(stream: io.TextIOWrapper) -> int:
    with contextlib.suppress(OSError, ValueError):
        return stream.fileno()
    return -1
