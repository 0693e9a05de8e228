"""outlet: standard output and standard error for a program that has more to do than to talk."""

from __future__ import annotations

import contextlib
import io
import os
import select
from typing import Any, TextIO


def outlet(stream: TextIO | None, descriptor: int) -> TextIO:
    """`stream`, or one in its place, that goes on without its reader, and with any text.

    A reader that leaves (a pager, head) is no error of the run: what is written after that goes nowhere, as it does
    where there is no room for it (`lost`). A stream that was closed before the program began is None in Python, and
    goes nowhere from the start. File names may hold bytes that no encoding knows: these are escaped. What is no file of
    this process (a test's) stays, but for that.
    """
    if isinstance(stream, io.TextIOWrapper) and isinstance(getattr(stream.buffer, "raw", None), _Outlet):
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
    buffer = io.BufferedWriter(_Outlet(descriptor, "wb", closefd=False))
    return io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=line_buffering)


def lost(stream: TextIO) -> str:
    """Why something that was written to this stream, and flushed, is not there; empty where all is, or nobody reads."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.reason if isinstance(raw, _Outlet) else ""


def reader_left(stream: TextIO) -> bool:
    """Whether the reader of this stream, a pipe or socket, has closed its end, so that more output is of no use."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(raw, _Outlet):
        return False
    poll = select.poll()
    poll.register(raw.fileno(), 0)
    return raw.reader_left or any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class _Outlet(io.FileIO):
    """Writes to its descriptor while it has a reader and room; `reason` says why there is no room."""

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
