"""The compile farm: a pool of worker processes that compiles kernel specs to binaries, without a GPU or PyTorch.

Any number of owners (the problems that devices work on) order jobs at any time, each with a rank. The pool takes jobs
in the order of ranks, so that no owner waits for the whole list of another, and a job that has not begun can be
dropped.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compile_queue import CompileQueue, ResultCallback
from genkern.compile.compiler import CompileJob, end_own_process
from genkern.errors import GenkernError, MachineError
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.kernel import KernelSpec, Target, compile_environment

# If a pool loses a worker, it is started anew. After this many losses without a result in between, all orders are given
# up, since a kernel may be what ends the workers. After this many such failures in a row the farm is given up.
_FRUITLESS_RESTARTS = 3
_FRUITLESS_FAILURES = 2
_HINT = "try fewer --jobs, or a higher limit of memory and processes (ulimit -v -u, the container's)"
# How often the pool's health is checked while no result arrives.
_LOOK_S = 2.0
# A pool that never had a worker is given up sooner: no kernel can be the reason.
_FRUITLESS_STARTS = 2
# One worker in four stays free of jobs of owners that stand behind. The problem that is being measured orders a few
# binaries at a time, chosen by the last measurements; with all workers taken, each such batch would wait for half a
# compile, some 0.2 s. Its finals are timed at the same time, too: compiling on 9 of 16 cores was measured not to
# disturb them.
_SPARED = 4
# Jobs per message to an external pool: many, since a message costs as much as some compiles, but few enough that each
# worker comes back _ROUNDS times for the jobs that are waiting, so that a later, more urgent order is taken soon.
TOGETHER = 8
_ROUNDS = 4
# Farms with this many workers start them while configs are still being pruned. A start takes a second of a core that
# would be idle; smaller machines have no idle cores then.
_WARMED = 8


def background_jobs(jobs: int) -> int:
    """Return how many of `jobs` workers may compile for owners that stand behind."""
    return jobs - jobs // _SPARED


class FarmClosedError(GenkernError):
    """The farm was closed while it compiled: the run is ending."""


@dataclass
class FarmCounts:
    """Counts of a farm's work so far.

    wanted: binaries that were ordered
    cached: results that were found in the cache, or compiled for another owner
    compiled: binaries that were compiled
    failed: kernels that could not be compiled
    restarts: times that the pool lost a worker and was started anew
    compile_s: wall-clock seconds in which jobs were under way
    failures: why a kernel could not be compiled, by key
    """

    wanted: int = 0
    cached: int = 0
    compiled: int = 0
    failed: int = 0
    restarts: int = 0
    compile_s: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)


class Pool(Protocol):
    """External processes that compile instead of the farm's own; `genkern.compile.remote` implements it with Dask."""

    def connect(self) -> object:
        """Connect, unless that is done; this may start threads. Raises InputError if no worker is there."""

    @property
    def size(self) -> int:
        """The number of jobs that the workers do at a time, now."""

    def begin(self, jobs: Sequence[CompileJob]) -> Sequence[Future[Binary | Failure]]:
        """Have one worker do these jobs, one after another."""

    def end(self) -> None: ...


class Farm:
    """Compiles kernels for one target, in `jobs` worker processes or in those of `pool`.

    A compile may take `timeout_s` seconds. Its temporary files go to `temporary_dir` (None: TMPDIR), where they stay if
    the worker is killed. If `may_compile` is False, a kernel that the cache lacks ends as a Failure `from_outside`.

    While there are jobs, a thread hands them to the pool: one per worker and a few more, so that a later but more
    urgent order does not wait for the rest.
    """

    def __init__(
        self,
        cache: BinaryCache,
        target: Target,
        triton_version: str,
        *,
        jobs: int,
        timeout_s: float,
        temporary_dir: str | None = None,
        may_compile: bool = True,
        pool: Pool | None = None,
    ) -> None:
        self.cache = cache
        self.target = target
        self.triton_version = triton_version
        self._jobs = jobs
        self.timeout_s = timeout_s
        self.temporary_dir = temporary_dir
        self.may_compile = may_compile
        self._pool = pool
        # Read once: the environment is the same for all kernels of a run.
        self._environment = compile_environment()
        self.counts = FarmCounts()
        self._queue = CompileQueue()
        # Guards the counts, the orders and the set of binaries.
        self._changed = threading.Condition()
        self._made: set[str] = set()
        # Compiled keys that no owner has claimed yet: the first claim counts as compiled, later ones as cached.
        self._unclaimed: set[str] = set()
        self._thread: threading.Thread | None = None
        # A worker that dies takes all jobs of its pool along. `_pool_number` tells whether a lost job belonged to the
        # current pool; `_fruitless` counts pools that died without a result.
        self._pool_number = self._fruitless = 0
        # How often all orders were given up since the last result.
        self._failures = 0
        # The last pool that was tested for starting a worker, and whether any worker ever started.
        self._asked_pool = -1
        self._has_started = False
        # Why nothing can be compiled any more.
        self._broken: MachineError | None = None
        self._busy_since_s = 0.0
        self._pooled = False
        self._closed = False

    @property
    def jobs(self) -> int:
        """The number of kernels that are compiled at a time."""
        return self._jobs if self._pool is None else self._pool.size

    def connect(self) -> None:
        """Connect to the external pool, or start the farm's own workers if there are at least `_WARMED` of them.

        Call this before the first job. Nothing may fork afterwards. Raises InputError.
        """
        if self._pool is not None:
            self._pool.connect()
        elif self.may_compile and self._jobs >= _WARMED:
            from genkern.compile.pool import warm

            self._pooled = True
            for asked in warm(self._jobs):
                asked.add_done_callback(self._started)

    def key(self, spec: KernelSpec) -> str:
        return spec.key(self.target, self.triton_version, self._environment)

    def job(self, key: str, module_path: str, spec: KernelSpec) -> CompileJob:
        """Return the job that compiles `spec`, whose key is `key`, of the module at `module_path`."""
        folders = str(self.cache.folder), self.timeout_s, self.temporary_dir
        return CompileJob(key, module_path, spec, self.target, *folders)

    def count(self, *, wanted: int) -> None:
        """Add to the number of binaries that owners of normal priority want (those that `set_background` did not
        put behind).
        """
        with self._changed:
            self.counts.wanted += wanted

    def claim(self, keys: Collection[str]) -> None:
        """Count as cached those of these results that this farm has not produced, or that were claimed before."""
        with self._changed:
            self.counts.cached += sum(key not in self._unclaimed for key in keys)
            self._unclaimed.difference_update(keys)

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        """Have jobs done, each with its rank. An owner's job of the lowest rank comes first; the owner with the fewest
        jobs under way comes first.

        `tell(key, result)` is called for each job, from a thread of the farm or before this method returns. The result
        is the Binary, the Failure, or the exception that ended the job: OutputError if the cache cannot be written,
        MachineError if workers cannot start or the compiler does not work, BugError as `compile_kernel` raises it,
        FarmClosedError. A job that several owners order is done once.
        """
        told: list[tuple[str, Binary | Failure | Exception]] = []
        with self._changed:
            for rank, job in jobs:
                if self._closed:
                    told.append((job.key, FarmClosedError("the compile farm is closed")))
                elif self._broken is not None:
                    told.append((job.key, self._broken))
                elif job.key in self._made and (made := self.cache.get(job.key)) is not None:
                    # It was compiled after its owner looked for it in the cache.
                    told.append((job.key, made))
                elif not self.may_compile:
                    told.append((job.key, failure := _not_compiled(job.key)))
                    self.counts.failed += 1
                    self.counts.failures[job.key] = failure.message
                    self._unclaimed.add(job.key)
                else:
                    self._queue.add(owner, job, rank, tell)
            if len(self._queue) and self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._busy_since_s = time.monotonic()
                self._thread.start()
            self._changed.notify_all()
        for key, result in told:
            tell(key, result)

    def set_background(self, owner: Hashable, *, background: bool) -> None:
        """Give an owner lower priority than all others (`behind`), or equal priority again. Call this before its first
        `order`.

        Of every `_SPARED` workers one is kept free of jobs of owners with lower priority (none if there are fewer
        workers), since a job that has begun is not stopped.
        """
        with self._changed:
            self._queue.set_background(owner, background=background)
            self._changed.notify_all()

    def drop(self, owner: Hashable, keys: Collection[str] | None = None) -> None:
        """Withdraw the owner's requests for `keys` (None: all); its callbacks are not called any more.

        A job that has not begun is not compiled, unless other owners want it too.
        """
        with self._changed:
            self._queue.drop(owner, keys)
            self._changed.notify_all()

    def compile(self, module_path: str, specs: Iterable[KernelSpec]) -> Iterator[Binary | Failure]:
        """Yield one result per distinct spec of a module: results from the cache first, the others in any order.

        Raises OutputError if the cache cannot be written, MachineError if workers cannot start or the compiler does not
        work, BugError as `compile_kernel` does, and FarmClosedError.
        """
        missing: list[CompileJob] = []
        for key, spec in {self.key(spec): spec for spec in specs}.items():
            known = self.cache.get(key)
            self.count(wanted=1)
            if known is not None:
                self.claim((key,))
                yield known
            else:
                missing.append(self.job(key, module_path, spec))
        yield from self.compile_jobs(missing)

    def compile_jobs(self, jobs: Sequence[CompileJob]) -> Iterator[Binary | Failure]:
        """Yield the result of each job in any order, without looking into the cache. Raises as `compile` does."""
        owner, results = object(), queue.SimpleQueue[Binary | Failure | Exception]()
        self.order(owner, list(enumerate(jobs)), lambda _, result: results.put(result))
        try:
            for _ in jobs:
                if isinstance(result := results.get(), Exception):
                    raise result
                self.claim((result.key,))
                yield result
        finally:
            self.drop(owner)

    def close(self) -> None:
        """Kill the compile workers, whatever they are doing. Workers of a farm that compiled nothing are left alone.

        Closing a second time does nothing but end this process's own compile process.
        """
        with self._changed:
            is_first, self._closed = not self._closed, True
            left = list(self._queue.pop_all())
            self._changed.notify_all()
        for key, tell in left:
            tell(key, FarmClosedError("the compile farm is closed"))
        end_own_process()
        if not is_first:
            return
        if self._pool is not None:
            self._pool.end()
        if self._pooled:
            from genkern.compile.pool import end

            end()

    def _work(self) -> None:
        """Hand jobs to the pool as it has room, until there are none."""
        # Imported here because joblib takes as long to import as genkern, and a run whose binaries are all cached needs
        # none.
        from genkern.compile.pool import WorkerDiedError, submit

        while True:
            with self._changed:
                while not (jobs := self._next()):
                    if self._closed or not len(self._queue):
                        self._thread = None
                        return
                    if not self._changed.wait(_LOOK_S) and self._has_lost_its_pool():
                        break
                self._pooled, number = True, self._pool_number
                left = list(self._queue.pop_all()) if self._broken is not None else []
            if self._broken is not None:
                for key, tell in left:
                    tell(key, self._broken)
                continue
            try:
                if self._pool is None:
                    self._ask_whether_one_starts(number)
                    begun: Sequence[Future[Binary | Failure]] = [submit(jobs[0], self._jobs)]
                else:
                    begun = self._pool.begin(jobs)
            except WorkerDiedError:
                self._lost(jobs[0], number)
            except Exception as error:
                if isinstance(error, MachineError):
                    # loky does not try a second time: without this no job would ever end.
                    self._broken = error
                for job in jobs:
                    self._ended(job, error)
            else:
                for job, future in zip(jobs, begun, strict=True):
                    future.add_done_callback(partial(self._returned, job, number))

    def _has_lost_its_pool(self) -> bool:
        """Mark the farm as broken and return True if the pool's thread has died, so that no job would ever end.

        That happens if the machine refuses the pool a thread or a file. Needs the lock.
        """
        from genkern.compile.pool import has_lost_its_thread

        if self._pool is not None or not self._queue.in_flight or not has_lost_its_thread():
            return False
        self._broken = MachineError(f"the pool of compile workers has failed; {_HINT}")
        return True

    def _ask_whether_one_starts(self, pool: int) -> None:
        """Have a worker of a new pool report that it has started, before it gets a kernel that may kill it."""
        from genkern.compile.pool import ready

        if self._jobs > 1 and pool > self._asked_pool and not self._has_started:
            self._asked_pool = pool
            ready(self._jobs).add_done_callback(self._started)

    def _started(self, asked: Future[object]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._has_started = True

    def _next(self) -> list[CompileJob]:
        """Return the jobs to hand to one worker now; several if the pool is external and many jobs wait. Empty if the
        pool is full."""
        jobs, under_way = self.jobs, self._queue.in_flight
        room, room_behind = jobs + max(2, jobs // 4) if jobs > 1 else 1, background_jobs(jobs)
        together = 1
        if self._pool is not None:
            together = min(TOGETHER, max(1, (len(self._queue) - under_way) // (_ROUNDS * jobs)))
        if under_way >= room * together:
            return []
        also_behind = under_way < room_behind * together
        taken = (self._queue.next_job(also_background=also_behind) for _ in range(together))
        return [job for job in taken if job is not None]

    def _returned(self, job: CompileJob, number: int, future: Future[Binary | Failure]) -> None:
        from genkern.compile.pool import WorkerDiedError

        error = future.exception()
        if error is None:
            self._ended(job, future.result())
        elif isinstance(error, WorkerDiedError):
            self._lost(job, number)
        else:
            self._ended(job, error if isinstance(error, Exception) else GenkernError(str(error)))

    def _ended(self, job: CompileJob, result: Binary | Failure | Exception) -> None:
        """Count the result of a job, and call its owners' callbacks."""
        with self._changed:
            if self._closed:
                return
            if isinstance(result, Exception) and self._queue.is_for_others(job.key):
                # The error may be due to the owner whose job it was; it may have removed its module, for example.
                self._queue.requeue(job.key)
                told = []
            else:
                told = self._queue.pop_finished(job.key)
                self._count(result)
            self._changed.notify_all()
        for tell in told:
            tell(job.key, result)

    def _lost(self, job: CompileJob, number: int) -> None:
        """Order a job again whose worker could not start, or was killed from outside.

        If that never helps, every order ends: in a failure, or in a MachineError that ends the run.
        """
        from genkern.compile.pool import last_output_line

        failed: list[tuple[str, ResultCallback]] = []
        with self._changed:
            if self._closed:
                return
            if number == self._pool_number:
                self._pool_number += 1
                self.counts.restarts += 1
                self._fruitless += 1
            self._queue.requeue(job.key)
            if self._fruitless >= (_FRUITLESS_RESTARTS if self._has_started else _FRUITLESS_STARTS):
                self._fruitless = 0
                self._failures += 1
                failed = list(self._queue.pop_all())
                if not self._has_started or self._failures >= _FRUITLESS_FAILURES:
                    said = f": {said}" if (said := last_output_line()) else ""
                    what = "keep dying" if self._has_started else "cannot start"
                    self._broken = MachineError(f"compile workers {what}{said[:300]}; {_HINT}")
            results: dict[str, Failure | Exception] = {key: self._broken or _given_up(key) for key, _ in failed}
            failures = self._failures
            for result in results.values():
                self._count(result)
            self._failures = failures
            self._changed.notify_all()
        for key, tell in failed:
            tell(key, results[key])

    def _count(self, result: Binary | Failure | Exception) -> None:
        now_s = time.monotonic()
        self.counts.compile_s += now_s - self._busy_since_s
        self._busy_since_s = now_s
        self._fruitless = self._failures = 0
        if isinstance(result, Failure):
            self.counts.failed += 1
            self.counts.failures[result.key] = result.message
        elif isinstance(result, Binary):
            self._made.add(result.key)
            self.counts.compiled += 1
        if not isinstance(result, Exception):
            self._unclaimed.add(result.key)


def _not_compiled(key: str) -> Failure:
    message = "it was not compiled before, and nothing is compiled here (--may_compile)"
    return Failure(key, Outcome.COMPILE_FAILED, message, from_outside=True)


def _given_up(key: str) -> Failure:
    message = "compile workers keep dying; try fewer --jobs"
    return Failure(key, Outcome.COMPILE_FAILED, message, from_outside=True)
