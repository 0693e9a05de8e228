"""Turns: several measured processes of one run share a device, of which one at a time may use it.

A search waits for compiles most of its time, and the device with it; so other sizes are measured meanwhile, in
processes of their own. Whoever uses the device has the lock of its file, which the kernel drops with the process that
holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Callable, Iterator
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from genkern.files import regular

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class Turn:
    """What one of the processes that drive a device takes to use it; one thread of a process at a time.

    `path` is the device's file, "" for a device that nobody shares; `number` counts the processes. The first, 0, may
    make itself ready before anybody measures.
    """

    def __init__(self, path: str = "", number: int = 0) -> None:
        self.number = number
        self._path = path
        self._file: IO[str] | None = None
        self._depth = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait until nobody else uses the device, and keep it for the block; inside of such a block it is had."""
        if self._depth == 0 and self._path:
            # Opened by the process that uses it: a forked one would have the lock of its parent's file too.
            self._file = self._file or open(self._path, "a", opener=regular)  # noqa: SIM115  open during all turns
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def in_turn(
    method: Callable[Concatenate[Any, Given], Returned],
) -> Callable[Concatenate[Any, Given], Returned]:
    """The method, for all of which its object holds its `turn`."""

    @functools.wraps(method)
    def held(self: Any, /, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with self.turn.held():
            return method(self, *args, **kwargs)

    return held
