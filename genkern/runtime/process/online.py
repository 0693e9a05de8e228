"""Tuning at run time: background processes tune problems without a row, one at a time; their winners then serve calls.

docs/dispatch.md says which of several ranks tunes, and when all ranks start to use the winners.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from genkern.errors import GenkernError, LaunchError, ResultsError
from genkern.file_io import cache_folder, shown_path, write_whole
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import SUFFIX, Bundle, holds_manifest, parse_bundle
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.context import Context, problem_text
from genkern.runtime.launch.prepared_call import LiveGpu
from genkern.runtime.process.bundle_sources import Sources
from genkern.runtime.process.genkern_command import GenkernCommand, pack_arguments
from genkern.runtime.process.size_recorder import process_name, require_own
from genkern.runtime.process.trust import require_pinned

_LOG = logging.getLogger("genkern")
_PREFIX = "online_"
_LOOK_AGAIN_S = 0.1
# Limit for the tuning of one problem, far above any real time. A command that takes longer hangs.
_MOST_S = 3600.0
# New winners take effect when no more problems wait, or this long after the last change, since after each change all
# shapes are looked up again.
_CHANGE_EVERY_S = 30.0
# After this number of failures in a row, nothing more is tuned: perhaps this machine cannot tune.
_MOST_FAILURES = 3

# A problem that waits. Problems that no winner serves come first; otherwise the order is that of their arrival.
_Entry = tuple[bool, int, "LiveGpu | None", "GemmProblem | None"]


class Online:
    """A watch that has the problems of calls tuned in the background, and holds the bundles with their winners.

    `context` is the Context that is renewed when new winners take effect. Errors never reach a call.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        options: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
        start: Callable[[Sequence[str], Path, bool], GenkernCommand] = GenkernCommand,
        pins: Collection[str] = (),
    ) -> None:
        """Raise InputError if `folder` is in an installed package.

        folder: the folder for results and bundles.
        say: logs a line once.
        options: options of the command that `start` starts.
        environ: the environment variables.
        start: starts a command.
        pins: as in Sources.
        """
        require_own(folder)
        self.context: Context | None = None
        self._folder = folder.absolute()
        self._say = say
        self._options = tuple(options)
        self._environ = environ
        self._start = start
        self._pins = pins
        self._sources = Sources(say, pins=pins, named=False)
        self._agreed: list[Bundle] = []
        self._wanted: queue.PriorityQueue[_Entry] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._seen: set[GemmProblem] = set()
        self._graphs: dict[tuple[int, int], LiveGpu] = {}
        self._failures = 0
        self._found = False
        self._changed_s = time.monotonic()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._command: GenkernCommand | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def bundles(self) -> list[Bundle]:
        """Return the bundles that this and other processes have tuned at run time.

        With several ranks, return the bundles that `agree` has taken over from the first rank.
        """
        return self._sources.bundles(self._paths()) if ranks(self._environ).alone else self._agreed

    def agree(self) -> None:
        """Take over the first rank's bundles. A collective operation: every rank must call it at the same point."""
        here = ranks(self._environ)
        if here.alone:
            return
        if not here.meet:
            self._say(
                "several ranks without torch.distributed: winners tuned online are used once GENKERN_CONFIG names them"
            )
            return
        own = []
        for path in self._paths() if here.number == 0 else ():
            try:
                own.append((path, self._sources.data(path)))
            except (ResultsError, OSError) as error:
                self._say(str(error))
        agreed = []
        for path, data in of_first(own):
            try:
                require_pinned(data, self._pins, shown_path(path))
                agreed.append(parse_bundle(data, shown_path(path)))
            except ResultsError as error:
                self._say(str(error))
        self._agreed = agreed

    def __call__(self, gpu: LiveGpu | None, problem: GemmProblem, choice: Choice | None) -> None:
        """Have the problem tuned, unless a row of its own M decides the choice, or it was requested before."""
        if gpu is None or choice is None or choice.exact or problem in self._seen or os.getpid() != self._pid:
            return
        self._seen.add(problem)
        stream = gpu.stream()
        if _captures(gpu, stream):
            self._graphs[gpu.index, stream] = gpu
        self._wanted.put((choice.call is not None, next(self._numbers), gpu, problem))
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._work, name="genkern online tuning", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def close(self) -> None:
        """End the background thread and its command. Does nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        self._closed.set()
        with self._lock:
            thread, command = self._thread, self._command
        self._wanted.put((False, -1, None, None))
        if command is not None:
            command.end()
        if thread is not None:
            thread.join(5.0)

    def _work(self) -> None:
        while not self._closed.is_set():
            *_, gpu, problem = self._wanted.get()
            if gpu is None or problem is None or self._failures >= _MOST_FAILURES or ranks(self._environ).number:
                continue
            try:
                self._serve(gpu, problem)
            except (GenkernError, OSError) as error:
                self._failed(problem, str(error))
            except Exception as error:  # an exception of this thread would reach no caller
                _LOG.exception("online tuning")
                self._failed(problem, repr(error))
            late = time.monotonic() - self._changed_s > _CHANGE_EVERY_S
            if self._found and (late or self._wanted.empty()) and not self._closed.is_set():
                self._found, self._changed_s = False, time.monotonic()
                self._change_over()

    def _failed(self, problem: GemmProblem, why: str) -> None:
        self._failures += 1
        last = "; tuning at run time stops" if self._failures == _MOST_FAILURES else ""
        if not self._closed.is_set():
            self._say(f"{problem_text(problem)}: not tuned: {why}{last}")

    def _serve(self, gpu: LiveGpu, problem: GemmProblem) -> None:
        from genkern.journal.file_lock import Locked, held

        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        host = process_name(self._environ).partition("_")[0]
        # One tuning command at a time on a machine: two would disturb each other's measurements.
        lock = self._folder / f"{_PREFIX}{host}.lock"
        while not self._closed.is_set():
            if self._captures_a_graph():
                time.sleep(_LOOK_AGAIN_S)
                continue
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(held(lock))
                except Locked:
                    time.sleep(_LOOK_AGAIN_S)
                    continue
                if not self._is_found(gpu, problem):
                    self._tune(gpu, problem)
            self._found = True
            return

    def _captures_a_graph(self) -> bool:
        """Return True if a stream is still being captured on which tuning was requested during the capture."""
        for (index, stream), gpu in list(self._graphs.items()):
            if _captures(gpu, stream):
                return True
            del self._graphs[index, stream]
        return False

    def _is_found(self, gpu: LiveGpu, problem: GemmProblem) -> bool:
        """Return True if another process has tuned the problem meanwhile."""
        winners = (winner for bundle in self._sources.bundles(self._paths()) for winner in bundle.winners)
        return any(winner.problem == problem and gpu.identity.has(winner) for winner in winners)

    def _tune(self, gpu: LiveGpu, problem: GemmProblem) -> None:
        """Tune the problem, and pack all winners that were found so far. Raises GenkernError or OSError."""
        from genkern.files.tune_gemm_yaml import size_line

        stem = self._folder / f"{_PREFIX}{process_name(self._environ)}"
        size, results, log = (stem.with_name(f"{stem.name}{end}") for end in (".size", ".yaml", ".log"))
        write_whole(str(size), size_line(problem))
        started_s = time.monotonic()
        jobs = max(1, len(os.sched_getaffinity(0)) // 2)
        arguments = ["-i", str(size), "-o", str(results), "--gpu_ids", str(gpu.index), "--jobs", str(jobs)]
        arguments.append("--shared_gpu")
        try:
            self._run([*arguments, *self._options], log, 0)
        finally:
            with contextlib.suppress(OSError):
                size.unlink()
        bundle = stem.with_name(f"{stem.name}{SUFFIX}")
        if not holds_manifest(str(bundle)):
            bundle.unlink(missing_ok=True)
        self._run(pack_arguments(results, bundle, cache_folder(None)), log, 1)
        # Whatever the umask: a bundle that no user named is loaded only if no other user can write to it
        # (genkern.runtime.process.trust).
        bundle.chmod(stat.S_IMODE(bundle.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
        self._failures = 0
        _LOG.info("%s: tuned in %.1f s", problem_text(problem), time.monotonic() - started_s)

    def _run(self, arguments: Sequence[str], log: Path, most: int) -> None:
        """Run a command. Raise ResultsError with its last line if it was ended or its status is above `most`."""
        with self._lock:
            command = self._command = None if self._closed.is_set() else self._start(arguments, log, True)
        status = command.wait(_MOST_S) if command else None
        if command and status is None:
            command.end()
        if status not in range(most + 1):
            said = command.last_line if command else ""
            raise ResultsError(f"{said or f'ended with {status}'} ({shown_path(str(log))})")

    def _change_over(self) -> None:
        if not ranks(self._environ).alone:
            self._say("winners were found online: all ranks use them after genkern.tuned_gemm.renew()")
        elif self.context is not None:
            self.context.renew()

    def _paths(self) -> list[str]:
        return sorted(map(str, self._folder.glob(f"{_PREFIX}*{SUFFIX}")))


def _captures(gpu: LiveGpu, stream: int) -> bool:
    try:
        return gpu.driver.capture(stream) != 0
    except LaunchError:
        return False


T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's number among `size` processes. `meet` is True if they can communicate."""

    number: int = 0
    size: int = 1
    meet: bool = True

    @property
    def alone(self) -> bool:
        return self.size == 1


def ranks(environ: Mapping[str, str]) -> Ranks:
    """Return the rank from torch.distributed if it is initialised, else from the launcher's RANK and WORLD_SIZE."""
    if (distributed := _distributed()) is not None:
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    number, size = (environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not number.isdigit():
        return Ranks()
    # Without WORLD_SIZE, assume that there are several.
    count = int(size) if size.isdigit() else 2
    return Ranks(int(number), count, meet=count == 1)


def of_first(value: T) -> T:
    """Return the first rank's `value`. A collective operation: every rank must call it at the same point."""
    distributed = _distributed()
    if distributed is None or distributed.get_world_size() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def _distributed() -> Any:
    """Return torch.distributed if the program has initialised it; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
