"""DeviceLock: the lock by which several measured processes of one run share a device, one at a time.

While a search waits for compiles, its device would idle; so other processes measure other sizes meanwhile. The process
that uses the device holds a file lock, which the kernel releases when that process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Callable, Iterator
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from genkern.file_io import open_regular

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class DeviceLock:
    """The lock of one device, for one of the processes that use it. Not thread-safe: one thread of a process at a time.

    `path`: the lock file, "" for a device that no other process uses. `number`: number of this process; process 0 may
        initialise the device before any measurement.
    """

    def __init__(self, path: str = "", number: int = 0) -> None:
        self.number = number
        self._path = path
        self._file: IO[str] | None = None
        self._depth = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the device during the block; waits for other processes. Reentrant."""
        if self._depth == 0 and self._path:
            # Opened by the process that uses the device: a forked process would share the lock of its parent's open
            # file.
            self._file = self._file or open(self._path, "a", opener=open_regular)  # noqa: SIM115  stays open
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def holds_device(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Decorate a method to hold its object's `device_lock` during the call."""

    @functools.wraps(method)
    def held(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with self.device_lock.hold():
            return method(self, *args, **kwargs)

    return held
