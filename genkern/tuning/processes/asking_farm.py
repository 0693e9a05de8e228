"""AskingFarm: the compile farm of a driver process, which passes compile jobs to the farm of the parent process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Sequence

from genkern.compile.cache import Failure
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm, FarmClosedError
from genkern.gemm.records import Binary


class NoFarmError(FarmClosedError):
    """The parent process, which compiles, has ended; this process is about to end too."""


class AskingFarm(Farm):
    """Looks up binaries in the cache itself; the parent compiles missing ones, and its results arrive in `receive`."""

    def __init__(self, farm: Farm, send: Callable[..., None]) -> None:
        what = farm.cache, farm.target, farm.triton_version
        super().__init__(*what, jobs=farm.jobs, timeout_s=farm.timeout_s, temporary_dir=farm.temporary_dir)
        self._send = send
        self._asking = threading.Lock()
        # Owners get numbers, since objects are not equal across processes. `_tells` has the callback of each ordered
        # key, by the owner's number; it is None once the parent has ended.
        self._numbers: dict[Hashable, int] = {}
        self._next_numbers = itertools.count()
        self._tells: dict[int, dict[str, ResultCallback]] | None = {}

    def has_jobs(self, jobs: int) -> None:
        """Set the number of kernels that the parent compiles at a time."""
        self._jobs = jobs

    def claim(self, keys: Collection[str]) -> None:
        self._send("claim", tuple(keys))

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        with self._asking:
            if self._tells is not None:
                number = self._number(owner)
                self._tells.setdefault(number, {}).update((job.key, tell) for _, job in jobs)
                self._send("order", number, jobs)
                return
        for _, job in jobs:
            tell(job.key, NoFarmError())

    def set_background(self, owner: Hashable, *, background: bool) -> None:
        with self._asking:
            self._send("stand", self._number(owner), background)

    def drop(self, owner: Hashable, keys: Collection[str] | None = None) -> None:
        with self._asking:
            if (number := self._numbers.get(owner)) is None or self._tells is None:
                return
            tells = self._tells.get(number, {})
            for key in list(tells) if keys is None else keys:
                tells.pop(key, None)
            if keys is None:
                del self._numbers[owner]
                self._tells.pop(number, None)
            self._send("drop", number, keys)

    def receive(self, number: int, key: str, result: Binary | Failure | Exception) -> None:
        with self._asking:
            tell = (self._tells or {}).get(number, {}).pop(key, None)
        if tell is not None:
            tell(key, result)

    def lose(self) -> None:
        """Answer all waiting orders, and every later one, with NoFarmError, since the parent has ended."""
        with self._asking:
            tells, self._tells = self._tells or {}, None
        for waiting in tells.values():
            for key, tell in waiting.items():
                tell(key, NoFarmError())

    def _number(self, owner: Hashable) -> int:
        if owner not in self._numbers:
            self._numbers[owner] = next(self._next_numbers)
        return self._numbers[owner]
