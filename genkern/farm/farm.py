"""The compile farm: a joblib pool that turns kernel specs into binaries, as they come, without a GPU or PyTorch."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from genkern.errors import GenkernError
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob, end_own_process
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.kernel import KernelSpec, Target, compile_environment

# A pool that loses a worker is started anew; one that keeps losing them without finishing a single kernel
# in between (a machine out of memory, say) is given up after this many times.
_FRUITLESS_RESTARTS = 3


def never() -> bool:
    """For a farm that is to compile everything."""
    return False


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


class Farm:
    """Compiles for one target. `jobs` worker processes; each kernel may take `timeout_s`.

    What a compile needs on the way lies in `temporary_dir` (none: TMPDIR), from where a killed one does not remove it.
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
    ) -> None:
        self.cache = cache
        self.target = target
        self.triton_version = triton_version
        self.jobs = jobs
        self.timeout_s = timeout_s
        self.temporary_dir = temporary_dir
        # Read once: it is the same for all kernels of a run.
        self._environment = compile_environment()
        self.counts = FarmCounts()
        self._pooled = False
        self._closed = False

    def key(self, spec: KernelSpec) -> str:
        return spec.key(self.target, self.triton_version, self._environment)

    def compile(
        self,
        module_path: str,
        specs: Iterable[KernelSpec],
        enough: Callable[[], bool] = never,
        *,
        in_turn: bool = False,
    ) -> Iterator[Binary | Failure]:
        """Yield one result per distinct spec, what the cache has first, then the rest in any order.

        With `in_turn` what the cache has comes no sooner than if it were compiled: behind as many results of compiles
        as there are specs before it that must be compiled. Once `enough`, which any thread may ask, nothing is begun
        any more; what was under way still comes.
        Raises OutputError when the cache cannot be written, BugError as `compile_kernel` does.
        """
        missing: list[CompileJob] = []
        # What the cache has, with how many results of compiles come before it.
        behind: deque[tuple[int, Binary | Failure]] = deque()
        seen: set[str] = set()
        for spec in specs:
            if enough():
                break
            key = self.key(spec)
            if key in seen:
                continue
            seen.add(key)
            self.counts.wanted += 1
            if (known := self.cache.get(key)) is not None:
                if in_turn and missing:
                    behind.append((len(missing), known))
                else:
                    self.counts.cached += 1
                    yield known
            else:
                folders = str(self.cache.folder), self.timeout_s, self.temporary_dir
                missing.append(CompileJob(key, module_path, spec, self.target, *folders))
        if missing:
            with contextlib.closing(self.compile_jobs(missing, enough)) as results:
                for made, result in enumerate(results, 1):
                    yield result
                    while behind and behind[0][0] <= made and not enough():
                        self.counts.cached += 1
                        yield behind.popleft()[1]

    def compile_jobs(
        self, missing: Sequence[CompileJob], enough: Callable[[], bool] = never
    ) -> Generator[Binary | Failure, None, None]:
        """Yield the result of each job in any order, without a look into the cache."""
        # joblib, which takes as long to import as genkern: a run whose binaries are all in the cache does without.
        from genkern.farm.pool import WorkerDiedError

        started, before_s = time.monotonic(), self.counts.compile_s
        pending = {job.key: job for job in missing}
        fruitless = 0
        while pending and not enough():
            before = len(pending)
            try:
                with contextlib.closing(self._pool(list(pending.values()), enough)) as results:
                    for result in results:
                        del pending[result.key]
                        self._count(result)
                        self.counts.compile_s = before_s + time.monotonic() - started
                        yield result
            except WorkerDiedError:
                if self._closed:
                    raise FarmClosedError("the compile farm is closed") from None
                # A worker was killed from outside (its compile process would not take it along).
                self.counts.restarts += 1
                fruitless = 0 if len(pending) < before else fruitless + 1
                if fruitless < _FRUITLESS_RESTARTS:
                    continue
                for key in list(pending):
                    message = "compile workers keep dying; try fewer --jobs"
                    failure = Failure(key, Outcome.COMPILE_FAILED, message, from_outside=True)
                    del pending[key]
                    self._count(failure)
                    yield failure

    def _pool(self, jobs: Sequence[CompileJob], enough: Callable[[], bool]) -> Generator[Binary | Failure, None, None]:
        from genkern.farm.pool import results_of

        self._pooled = True
        return results_of(itertools.takewhile(lambda _: not enough(), jobs), self.jobs)

    def close(self) -> None:
        """End the compile workers at once, with whatever they are doing; a farm at rest only lets them go."""
        self._closed = True
        end_own_process()
        if self._pooled:
            from genkern.farm.pool import end

            end()

    def _count(self, result: Binary | Failure) -> None:
        if isinstance(result, Failure):
            self.counts.failed += 1
            self.counts.failures[result.key] = result.message
        else:
            self.counts.compiled += 1
