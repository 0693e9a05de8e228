"""`CandidateBuilder` turns the configs of one problem into candidates: look up binaries, compile them, drop what
cannot launch.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from genkern.compile.binary_groups import binary_group, launch_group
from genkern.compile.cache import Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.compile.occupancy import fits
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.records import Binary, Candidate, Outcome, Unfit
from genkern.kernels.catalogue import is_deterministic
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import GeneratedModule
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.specs import kernel_specs, main_binary, plan_text, run_time_values
from genkern.ops.op import get_op
from genkern.timing.session import Session

# Configs that share all their binaries and differ only in parameters that are set at run time.
SameBinaryConfigs = Sequence[Config]


@dataclass
class ProblemBuild:
    """One problem: its session, and the results for its configs so far.

    session: the problem and how its kernels are measured
    ready: candidates, by name of config
    unfit: why a config is no candidate, by name of config
    binaries: the binary that multiplies, by name of config
    launches: for each distinct launch, the name of the config that is measured for it
    """

    session: Session
    ready: dict[str, Candidate] = field(default_factory=dict)
    unfit: dict[str, Unfit] = field(default_factory=dict)
    binaries: dict[str, Binary] = field(default_factory=dict)
    launches: dict[Hashable, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildResult:
    """The result for a set of configs that share all their binaries.

    rank: the rank with which the set was ordered
    configs: the set
    candidates: candidates for the configs that can be measured
    unfit: why the other configs are no candidates, by name of config
    binary: the binary that multiplies; None if a binary could not be compiled
    cached: True if nothing had to be compiled
    """

    rank: int
    configs: tuple[Config, ...]
    candidates: tuple[Candidate, ...]
    unfit: Mapping[str, Unfit]
    binary: Binary | None
    cached: bool


@dataclass
class _BinaryRequest:
    """A set of configs whose binaries are being compiled; `keys` are the binaries' keys, in the order of launches."""

    rank: int
    configs: tuple[Config, ...]
    keys: tuple[str, ...]
    cached: bool


class CandidateBuilder:
    """Turns configs of one problem into candidates, on a farm that other builders use at the same time.

    One thread calls `order` and `made`; any other thread may call `drop` or `close`. `on_unfit(names, unfit)` is called
    for configs that are unfit for the same reason. It is not called for identical copies, nor for failures that say
    nothing about the kernel (`Failure.from_outside`). Configs named in `first` become candidates even if they are
    copies of another config; with `copies`, all configs do.
    """

    def __init__(
        self,
        build: ProblemBuild,
        farm: Farm,
        gpu: Gpu,
        module: GeneratedModule,
        module_path: str,
        *,
        first: Collection[str] = (),
        copies: bool = False,
    ) -> None:
        self.build = build
        self.farm = farm
        self.on_unfit: Callable[[Sequence[str], Unfit], None] = lambda names, unfit: None
        self._gpu = gpu
        self._module, self._module_path = module, module_path
        self._first, self._copies = first, copies
        self._op = get_op(build.session.problem.op)
        self._product = product_of(build.session.problem, self._op, module.arch)
        self._keys: dict[Hashable, tuple[str, ...]] = {}
        self._codes: dict[Hashable, str] = {}
        self._specs: dict[str, KernelSpec] = {}
        self._looked_up: dict[str, Binary | Failure | None] = {}
        # Results of the binaries that were ordered, by key, and the keys whose results came from the cache.
        self._results: dict[str, Binary | Failure] = {}
        self._wanted: set[str] = set()
        self._cached: set[str] = set()
        # Keys of results that the farm has not counted yet.
        self._unclaimed: list[str] = []
        self._is_background = False
        self._in_flight: dict[int, _BinaryRequest] = {}
        self._waiting: dict[str, list[int]] = {}
        self._arrived: queue.SimpleQueue[tuple[str, Binary | Failure | Exception] | None] = queue.SimpleQueue()
        self._complete: deque[_BinaryRequest] = deque()
        # Guards `_in_flight`, `_waiting` and `_results`.
        self._lock = threading.Lock()
        self.is_closed = False

    @property
    def in_flight(self) -> int:
        """The number of sets of configs that were ordered and neither returned by `made` nor dropped."""
        return len(self._in_flight) + len(self._complete)

    @property
    def results(self) -> Mapping[str, Binary | Failure]:
        """The binaries and failures that are available so far, by key."""
        return self._results

    @property
    def counts(self) -> tuple[int, int, int]:
        """The number of binaries, of failures, and of cache hits among both."""
        failed = sum(isinstance(result, Failure) for result in self._results.values())
        return len(self._results) - failed, failed, len(self._cached)

    def set_background(self, *, background: bool) -> None:
        """Let the farm compile this builder's jobs after those of other builders (`behind`), or with equal priority
        again.

        While the builder is behind, its keys are not counted as wanted; they are when it stops being behind.
        """
        self.farm.set_background(self, background=background)
        if self._is_background and not background:
            self.farm.count(wanted=len(self._wanted))
        self._is_background = background
        self._claim()

    def exclude(self, unfit: Mapping[str, Unfit]) -> None:
        """Record configs that are no candidates, whatever comes of compiling them."""
        self.build.unfit |= unfit

    def worth_compiling(self, configs: Iterable[Config]) -> list[Config]:
        """Return the configs worth compiling: those that are not unfit, and those that were over resources.

        A new binary decides the latter again.
        """
        if not (unfit := self.build.unfit):
            return list(configs)
        return [c for c in configs if c.name not in unfit or unfit[c.name].outcome is Outcome.OVER_RESOURCES]

    def is_cached(self, configs: SameBinaryConfigs) -> bool:
        """Return True if the cache has a result, binary or failure, for every binary of these configs.

        Entries of the layer behind the cache count without being read, so one of them may turn out to be damaged.
        """
        return all(self.farm.cache.offers(key) or self._look_up(key) is not None for key in self._keys_of(configs))

    def request_binaries(self, wanted: Sequence[tuple[int, SameBinaryConfigs]]) -> None:
        """Order the binaries of sets of configs. Each set has a rank of its own; the lowest rank is compiled first.

        `made` returns each set once all its binaries are available.
        """
        jobs: list[tuple[int, CompileJob]] = []
        for rank, configs in wanted:
            keys = self._keys_of(configs)
            missing = [key for key in keys if key not in self._results and not self._found(key)]
            order = _BinaryRequest(rank, tuple(configs), keys, not missing)
            if not missing:
                self._complete.append(order)
                continue
            with self._lock:
                self._in_flight[rank] = order
                new = [key for key in missing if key not in self._waiting]
                for key in missing:
                    self._waiting.setdefault(key, []).append(rank)
            jobs.extend((rank, self.farm.job(key, self._module_path, self._specs[key])) for key in new)
        self._claim()
        if jobs:
            self.farm.order(self, jobs, lambda key, result: self._arrived.put((key, result)))

    def next_built(self, *, wait: bool) -> BuildResult | None:
        """Return the next set of ordered configs whose binaries are all available, or None if there is none yet.

        With `wait`, blocks for it; None then means that nothing is under way, that a set was dropped, or that the
        builder is closed. Raises the exception that ended a compile: OutputError, MachineError, BugError or
        FarmClosedError.
        """
        while not self._complete:
            if self.is_closed or (wait and not self._in_flight):
                return None
            try:
                arrived = self._arrived.get(block=wait)
            except queue.Empty:
                return None
            if arrived is None:
                return None
            key, result = arrived
            if isinstance(result, Exception):
                raise result
            self._unclaimed.append(key)
            self._claim()
            with self._lock:
                self._results[key] = result
                for rank in self._waiting.pop(key, ()):
                    if all(key in self._results for key in self._in_flight[rank].keys):
                        self._complete.append(self._in_flight.pop(rank))
        return self._made_of(self._complete.popleft())

    def drop(self, rank: int) -> None:
        """Withdraw the set of configs of this rank.

        A binary whose compile has not begun is not compiled, unless another set needs it.
        """
        with self._lock:
            if (order := self._in_flight.pop(rank, None)) is None:
                return
            waiting = [key for key in order.keys if key in self._waiting]
            for key in waiting:
                self._waiting[key].remove(rank)
            unwanted = [key for key in waiting if not self._waiting[key]]
            for key in unwanted:
                del self._waiting[key]
        self.farm.drop(self, unwanted)
        # Wake a thread that waits in `made`: perhaps nothing is under way any more.
        self._arrived.put(None)

    def withdraw_candidate(self, name: str) -> None:
        """Remove a candidate that will not be measured, so that a later config with the same launch can be one."""
        self.build.ready.pop(name, None)

    def close(self) -> None:
        """Withdraw all orders; a thread that waits in `made` returns."""
        self.is_closed = True
        self.farm.drop(self)
        self._arrived.put(None)

    def source_of(self, config: Config) -> str:
        """Return the digest of the config's program (genkern.kernels.specs.source_digest)."""
        return self._module.source_digest(config, self._gpu)

    def code_of(self, config: Config) -> str:
        """Return 16 hexadecimal digits that identify the binaries of a config and its launch plan.

        They depend on the compiler and its settings, unlike `source_of`, whose digests are stored in results. Nothing
        needs to be compiled for them.
        """
        if (code := self._codes.get(what := binary_group(config))) is None:
            said = *self._keys_of([config]), plan_text(self._product, config, self._gpu)
            code = self._codes[what] = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
        return code

    def candidates(self, configs: Sequence[Config]) -> Iterator[Candidate]:
        """Order all configs that may become candidates, and yield each candidate when its binaries are ready."""
        sharers: dict[Hashable, list[Config]] = {}
        for config in sorted(self.worth_compiling(configs), key=lambda config: config.name not in self._first):
            sharers.setdefault(binary_group(config), []).append(config)
        self.request_binaries(list(enumerate(sharers.values())))
        while (built := self.next_built(wait=True)) is not None:
            yield from built.candidates

    def _keys_of(self, configs: SameBinaryConfigs) -> tuple[str, ...]:
        # Computed once per set of shared binaries: generating the specs of every config would dominate the time.
        if (keys := self._keys.get(what := binary_group(configs[0]))) is None:
            made_of = self._module.source_sha256, self._module.arch
            needed = {
                self.farm.key(spec): spec
                for spec in kernel_specs(self.build.session.problem, configs[0], self._op, *made_of)
            }
            self._specs |= needed
            keys = self._keys[what] = tuple(needed)
        return keys

    def _look_up(self, key: str) -> Binary | Failure | None:
        if key not in self._looked_up:
            self._looked_up[key] = self.farm.cache.get(key)
        return self._looked_up[key]

    def _found(self, key: str) -> bool:
        """Return True if the cache has the result of a key, which is counted as wanted the first time."""
        known = self._look_up(key)
        if key not in self._wanted:
            self._wanted.add(key)
            if not self._is_background:
                self.farm.count(wanted=1)
        if known is None:
            return False
        self._results[key] = known
        self._cached.add(key)
        self._unclaimed.append(key)
        return True

    def _claim(self) -> None:
        """Tell the farm that this builder uses the results that it has found, so that they count as cached or compiled.

        A bench of lower priority does not tell it yet: another builder may use them first.
        """
        if self._unclaimed and not self._is_background:
            self.farm.claim(self._unclaimed)
            self._unclaimed = []

    def _made_of(self, order: _BinaryRequest) -> BuildResult:
        build, configs = self.build, order.configs
        results = [self._results[key] for key in order.keys]
        binaries = tuple(result for result in results if isinstance(result, Binary))
        # Names are computed properties, and there are thousands of configs.
        names = [config.name for config in configs]
        # A config that is already unfit keeps its reason, whatever its binary says now.
        if why := self._unfit(configs[0], results):
            new = [name for name in names if name not in build.unfit]
            build.unfit |= dict.fromkeys(new, why)
            if new and not any(isinstance(result, Failure) and result.from_outside for result in results):
                self.on_unfit(new, why)
        candidates: list[Candidate] = []
        main = None
        if len(binaries) == len(results):
            main = main_binary(configs[0], binaries)
            build.binaries |= dict.fromkeys(names, main)
            plan = plan_text(self._product, configs[0], self._gpu)
            same = is_deterministic(build.session.problem, configs[0])
            for name, config in zip(names, configs, strict=True):
                if name not in build.unfit and self._is_to_be_measured(name, config, binaries):
                    build.ready[name] = Candidate(config, binaries, plan, tuple(run_time_values(config).items()), same)
                    candidates.append(build.ready[name])
        unfit = {name: build.unfit[name] for name in names if name in build.unfit}
        return BuildResult(order.rank, configs, tuple(candidates), unfit, main, order.cached)

    def _unfit(self, config: Config, made: Sequence[Binary | Failure]) -> Unfit | None:
        """Return why configs with these binaries cannot run, or None; `config` is any of them."""
        for result in made:
            if isinstance(result, Failure):
                return Unfit(result.outcome, result.message)
        main = main_binary(config, [result for result in made if isinstance(result, Binary)])
        reason = fits(main.resources, config.num_warps, self._gpu)
        return Unfit(Outcome.OVER_RESOURCES, reason) if reason else None

    def _is_to_be_measured(self, name: str, config: Config, binaries: Sequence[Binary]) -> bool:
        if self._copies or (launch := launch_group(config, binaries)) is None:
            return True
        measured = self.build.launches.setdefault(launch, name)
        if measured not in self.build.ready:
            # This is the first config with this launch, or the earlier one was put back.
            self.build.launches[launch] = measured = name
        if measured == name or name in self._first:
            return True
        self.build.unfit[name] = Unfit(Outcome.IDENTICAL, f"same machine code and launch as {measured}")
        return False
