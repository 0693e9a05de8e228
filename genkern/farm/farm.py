"""The compile farm: a joblib pool that turns kernel specs into binaries, as they come, without a GPU or PyTorch.

Jobs are ordered at any time, by any number of owners (the sizes that devices work on), each job with a rank; the pool
takes them in that order, and what is not begun can be dropped again. Nobody waits for another's list.
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

from genkern.errors import GenkernError, MachineError
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob, end_own_process
from genkern.farm.orders import Orders, Tell
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.kernel import KernelSpec, Target, compile_environment

# A pool that loses a worker is started anew. After this many losses without a single result in between, what is ordered
# is given up: kernels may end their workers. After this many such failures in a row the farm is given up.
_FRUITLESS_RESTARTS = 3
_FRUITLESS_FAILURES = 2
_HINT = "try fewer --jobs, or a higher limit of memory and processes (ulimit -v -u, the container's)"
# How often the pool is looked after while nothing is heard of it.
_LOOK_S = 2.0
# A pool that never had a worker is given up sooner: no kernel can be the reason.
_FRUITLESS_STARTS = 2
# One worker in so many does nothing for owners that stand behind. The size that is being measured orders a few binaries
# at a time, by what the last ones took: with all workers taken each such batch would wait for half a compile, some
# 0.2 s. And its finals are timed meanwhile: that compiling does not disturb is known of 9 of 16 cores (docs/history).
_SPARED = 4
# A pool elsewhere is told of so many jobs at once at most, since a message costs as much as some of them; and of so few
# that its workers come so often for more: what is ordered later but wanted more is not to wait.
TOGETHER = 8
_ROUNDS = 4
# So many workers begin before there is a job for them, while sizes are pruned: a second each, of cores that have
# nothing to do. Fewer cores have.
_WARMED = 8


def spared(jobs: int) -> int:
    """How many of so many workers may compile while something is measured."""
    return jobs - jobs // _SPARED


class FarmClosedError(GenkernError):
    """The farm was closed while it compiled: the run is ending."""


@dataclass
class FarmCounts:
    """What a farm did so far. `compile_s` is its wall-clock time from the first job to the last."""

    wanted: int = 0
    cached: int = 0
    compiled: int = 0
    failed: int = 0
    restarts: int = 0
    compile_s: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)


class Pool(Protocol):
    """Others' processes that compile in the place of the farm's own: `genkern.farm.remote` has Dask's."""

    def connect(self) -> object:
        """Begin, unless that is done: threads may begin with it. Raises InputError where nobody is there."""

    @property
    def size(self) -> int:
        """How many jobs they do at a time, now."""

    def begin(self, jobs: Sequence[CompileJob]) -> Sequence[Future[Binary | Failure]]:
        """Have one of them do these, one after another."""

    def end(self) -> None: ...


class Farm:
    """Compiles for one target. `jobs` worker processes; each kernel may take `timeout_s`.

    What a compile needs on the way lies in `temporary_dir` (none: TMPDIR), from where a killed one does not remove it.
    Others' processes do it where there is a `pool`, as many as there are then.
    Where it may not compile, what the cache lacks ends as a failure that says nothing of the kernel.
    A thread, which is there while there is something to do, hands jobs to the pool: as many as it has workers and a
    few, so that what is ordered later but wanted more need not wait for the rest.
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
        # Read once: it is the same for all kernels of a run.
        self._environment = compile_environment()
        self.counts = FarmCounts()
        self._orders = Orders()
        # Held for as long as it takes to change what is counted, ordered or made.
        self._changed = threading.Condition()
        self._made: set[str] = set()
        # What was compiled, and nobody whose turn it is has claimed yet.
        self._unclaimed: set[str] = set()
        self._thread: threading.Thread | None = None
        # A worker that dies takes all jobs of its pool along: which pool it was, and how many died without a result.
        self._pool_number = self._fruitless = 0
        # How often all orders were given up since the last result.
        self._failures = 0
        # The last pool that was asked whether a worker of it starts, and whether any ever did.
        self._asked_pool = -1
        self._has_started = False
        # Why nothing can be compiled any more.
        self._broken: MachineError | None = None
        self._busy_since_s = 0.0
        self._pooled = False
        self._closed = False

    @property
    def jobs(self) -> int:
        """How many kernels are compiled at a time."""
        return self._jobs if self._pool is None else self._pool.size

    def connect(self) -> None:
        """Have the pool begin, before there is a job for it: there are no forks afterwards. Raises InputError."""
        if self._pool is not None:
            self._pool.connect()
        elif self.may_compile and self._jobs >= _WARMED:
            from genkern.farm.pool import warm

            self._pooled = True
            for asked in warm(self._jobs):
                asked.add_done_callback(self._started)

    def key(self, spec: KernelSpec) -> str:
        return spec.key(self.target, self.triton_version, self._environment)

    def job(self, key: str, module_path: str, spec: KernelSpec) -> CompileJob:
        """What it takes to compile the spec, whose key this is, of a module."""
        folders = str(self.cache.folder), self.timeout_s, self.temporary_dir
        return CompileJob(key, module_path, spec, self.target, *folders)

    def count(self, *, wanted: int) -> None:
        """Count what somebody wants whose turn it is."""
        with self._changed:
            self.counts.wanted += wanted

    def claim(self, keys: Collection[str]) -> None:
        """Count what is there of that: from the cache, but for who is the first to claim what was compiled."""
        with self._changed:
            self.counts.cached += sum(key not in self._unclaimed for key in keys)
            self._unclaimed.difference_update(keys)

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: Tell) -> None:
        """Have jobs done, each with its rank: among those of an owner the lowest comes first, among owners the one for
        whom the least is being done.

        `tell` is called for each, from a thread of the farm's or at once, with its key and what came of it: the binary,
        the failure, or what ended it: OutputError if the cache cannot be written, MachineError if workers cannot start
        or the compiler does not work, BugError as `compile_kernel` raises it, FarmClosedError. A job that others have
        ordered too is done once.
        """
        told: list[tuple[str, Binary | Failure | Exception]] = []
        with self._changed:
            for rank, job in jobs:
                if self._closed:
                    told.append((job.key, FarmClosedError("the compile farm is closed")))
                elif self._broken is not None:
                    told.append((job.key, self._broken))
                elif job.key in self._made and (made := self.cache.get(job.key)) is not None:
                    # Since its owner looked for it.
                    told.append((job.key, made))
                elif not self.may_compile:
                    told.append((job.key, failure := _not_compiled(job.key)))
                    self.counts.failed += 1
                    self.counts.failures[job.key] = failure.message
                    self._unclaimed.add(job.key)
                else:
                    self._orders.add(owner, job, rank, tell)
            if len(self._orders) and self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._busy_since_s = time.monotonic()
                self._thread.start()
            self._changed.notify_all()
        for key, result in told:
            tell(key, result)

    def stand(self, owner: Hashable, *, behind: bool) -> None:
        """Put an owner behind all that do not stand behind, or among them again: said before it orders.

        While it stands behind, a share of the workers is not its own (`_SPARED`), since what is begun is not stopped.
        """
        with self._changed:
            self._orders.stand(owner, behind=behind)
            self._changed.notify_all()

    def drop(self, owner: Hashable, keys: Collection[str] | None = None) -> None:
        """The owner wants these keys no more (None: nothing at all), and is told of none of them from now on.

        What is not begun is not compiled, unless others want it too.
        """
        with self._changed:
            self._orders.drop(owner, keys)
            self._changed.notify_all()

    def compile(self, module_path: str, specs: Iterable[KernelSpec]) -> Iterator[Binary | Failure]:
        """Yield one result per distinct spec of a module, what the cache has first, then the rest in any order.

        Raises OutputError when the cache cannot be written, MachineError when workers cannot start or the compiler does
        not work, BugError as `compile_kernel` does, FarmClosedError.
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
        """Yield the result of each job in any order, without a look into the cache. Raises as `compile`."""
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
        """End the compile workers at once, with whatever they are doing; a farm at rest only lets them go.

        A second time there is nothing to end.
        """
        with self._changed:
            is_first, self._closed = not self._closed, True
            left = list(self._orders.all())
            self._changed.notify_all()
        for key, tell in left:
            tell(key, FarmClosedError("the compile farm is closed"))
        end_own_process()
        if not is_first:
            return
        if self._pool is not None:
            self._pool.end()
        if self._pooled:
            from genkern.farm.pool import end

            end()

    def _work(self) -> None:
        """Hand jobs to the pool as it has room, until there are none."""
        # joblib, which takes as long to import as genkern: a run whose binaries are all in the cache does without.
        from genkern.farm.pool import WorkerDiedError, begin

        while True:
            with self._changed:
                while not (jobs := self._next()):
                    if self._closed or not len(self._orders):
                        self._thread = None
                        return
                    if not self._changed.wait(_LOOK_S) and self._has_lost_its_pool():
                        break
                self._pooled, number = True, self._pool_number
                left = list(self._orders.all()) if self._broken is not None else []
            if self._broken is not None:
                for key, tell in left:
                    tell(key, self._broken)
                continue
            try:
                if self._pool is None:
                    self._ask_whether_one_starts(number)
                    begun: Sequence[Future[Binary | Failure]] = [begin(jobs[0], self._jobs)]
                else:
                    begun = self._pool.begin(jobs)
            except WorkerDiedError:
                self._lost(jobs[0], number)
            except Exception as error:
                if isinstance(error, MachineError):
                    # What loky could not start it does not start a second time: nothing would ever answer.
                    self._broken = error
                for job in jobs:
                    self._ended(job, error)
            else:
                for job, future in zip(jobs, begun, strict=True):
                    future.add_done_callback(partial(self._returned, job, number))

    def _has_lost_its_pool(self) -> bool:
        """Whether no job will ever end, since the machine refused a thread or a file to the pool. Held: the lock."""
        from genkern.farm.pool import has_lost_its_thread

        if self._pool is not None or not self._orders.under_way or not has_lost_its_thread():
            return False
        self._broken = MachineError(f"the pool of compile workers has failed; {_HINT}")
        return True

    def _ask_whether_one_starts(self, pool: int) -> None:
        """Have a worker of a new pool say that it has started, before it gets a kernel that may end it."""
        from genkern.farm.pool import ready

        if self._jobs > 1 and pool > self._asked_pool and not self._has_started:
            self._asked_pool = pool
            ready(self._jobs).add_done_callback(self._started)

    def _started(self, asked: Future[object]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._has_started = True

    def _next(self) -> list[CompileJob]:
        """What to hand to the pool now, to one of its workers: several jobs where many more are waiting."""
        jobs, under_way = self.jobs, self._orders.under_way
        room, room_behind = jobs + max(2, jobs // 4) if jobs > 1 else 1, spared(jobs)
        together = 1
        if self._pool is not None:
            together = min(TOGETHER, max(1, (len(self._orders) - under_way) // (_ROUNDS * jobs)))
        if under_way >= room * together:
            return []
        also_behind = under_way < room_behind * together
        taken = (self._orders.take(also_behind=also_behind) for _ in range(together))
        return [job for job in taken if job is not None]

    def _returned(self, job: CompileJob, number: int, future: Future[Binary | Failure]) -> None:
        from genkern.farm.pool import WorkerDiedError

        error = future.exception()
        if error is None:
            self._ended(job, future.result())
        elif isinstance(error, WorkerDiedError):
            self._lost(job, number)
        else:
            self._ended(job, error if isinstance(error, Exception) else GenkernError(str(error)))

    def _ended(self, job: CompileJob, result: Binary | Failure | Exception) -> None:
        """Count what came of a job, and tell whoever wants to know."""
        with self._changed:
            if self._closed:
                return
            if isinstance(result, Exception) and self._orders.is_for_others(job.key):
                # Its owner took the module away, say.
                self._orders.again(job.key)
                told = []
            else:
                told = self._orders.done(job.key)
                self._count(result)
            self._changed.notify_all()
        for tell in told:
            tell(job.key, result)

    def _lost(self, job: CompileJob, number: int) -> None:
        """A worker could not start, or was killed from outside (its compile process would not take it along): do its
        jobs once more. If that never helps, every order ends: in a failure, or in a MachineError that ends the run.
        """
        from genkern.farm.pool import last_words

        failed: list[tuple[str, Tell]] = []
        with self._changed:
            if self._closed:
                return
            if number == self._pool_number:
                self._pool_number += 1
                self.counts.restarts += 1
                self._fruitless += 1
            self._orders.again(job.key)
            if self._fruitless >= (_FRUITLESS_RESTARTS if self._has_started else _FRUITLESS_STARTS):
                self._fruitless = 0
                self._failures += 1
                failed = list(self._orders.all())
                if not self._has_started or self._failures >= _FRUITLESS_FAILURES:
                    said = f": {said}" if (said := last_words()) else ""
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
