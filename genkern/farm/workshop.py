"""Workshop: from a problem and its configs to candidates for measuring: generate, compile, drop what cannot fit."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genkern.farm.cache import Failure
from genkern.farm.farm import Farm
from genkern.farm.occupancy import fits
from genkern.files import write_whole
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Candidate, Outcome, Unfit
from genkern.kernels.families.product import product_of
from genkern.kernels.generate import GeneratedModule, generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.specs import compiled_in, kernel_specs, main_binary, plan_text, run_time_values
from genkern.ops.op import get_op
from genkern.timing.session import Budget, Session

_LEFT_OUT = Unfit(Outcome.PREDICTED_OUT, "so many in a row that promised more brought nothing faster (--patience)")


@dataclass
class Job:
    """One problem on the bench. Iterating over `candidates` compiles; the rest fills as it goes on.

    `launches` has the name of the config that is measured for each distinct launch. Where `candidates` is iterated,
    `on_unfit` is told of configs that share what makes them unfit (not of copies, nor where a compiler was ended from
    outside), and `on_compiled`, at the end, how
    many binaries there are, how many others failed, and how many of both were in the cache. Once it is `enough`, which
    any thread may say, no compile is begun any more, and configs without binaries are `predicted_out`.
    """

    session: Session
    candidates: Generator[Candidate, None, None]
    ready: dict[str, Candidate] = field(default_factory=dict)
    unfit: dict[str, Unfit] = field(default_factory=dict)
    binaries: dict[str, Binary] = field(default_factory=dict)
    launches: dict[Hashable, str] = field(default_factory=dict)
    on_unfit: Callable[[Sequence[str], Unfit], None] = lambda names, unfit: None
    on_compiled: Callable[[int, int, int], None] = lambda binaries, failed, cached: None
    enough: bool = False

    def leave_out(self, unfit: Mapping[str, Unfit]) -> None:
        """These are no candidates, whatever comes of compiling them, and of those that did not compile nobody tries it.

        To be called before `candidates` is iterated.
        """
        self.unfit |= unfit


class Workshop:
    """Makes jobs for one architecture. Several threads may use one workshop; they compile one after another."""

    def __init__(
        self, farm: Farm, gpu: Gpu, arch: str, budget: Budget, *, init_type: str, module_dir: str, keep_modules: bool
    ) -> None:
        self.farm = farm
        self.gpu = gpu
        self.arch = arch
        self.budget = budget
        self._init_type = init_type
        self.module_dir = str(Path(module_dir).resolve())
        self._keep_modules = keep_modules
        # By file name, the digests of the modules that this run has kept under it.
        self._kept: dict[str, list[str]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def open(
        self, problem: GemmProblem, configs: Sequence[Config], device_index: int, first: Collection[str] = ()
    ) -> Iterator[Job]:
        """The job of `problem` for `configs`; its generated module goes away afterwards unless it is to be kept.

        Of configs whose launches are the same to the hardware one is a candidate, the others are `identical`; those
        named in `first` come before others and are candidates always. An exhaustive budget takes every config.
        """
        module = generate(problem, configs, self.arch, self.gpu)
        kept = Path(self.module_dir) / module.file_name
        kernels = module.kernels_text
        # Named by their content, since workers and measured processes keep what they have imported, by path: a results
        # file may have several configs for one problem. And ours alone to delete.
        path = kept.with_name(f"{kept.stem}_{os.getpid()}_{_digest(module.text)}.py")
        kernels_path = kept.with_name(f"kernels_{os.getpid()}_{_digest(kernels)}.py")
        if self._keep_modules:
            write_whole(str(self._place_of(kept, module.text)), module.text)
        write_whole(str(path), module.text)
        write_whole(str(kernels_path), kernels)
        session = Session(str(path), problem, self.arch, device_index, self.module_dir, self.budget, self._init_type)
        none: tuple[Candidate, ...] = ()
        job = Job(session, (candidate for candidate in none))
        job.candidates = candidates = self._compile(configs, module, str(kernels_path), job, first)
        try:
            yield job
        finally:
            # An error on the way leaves it half way through, with the lock that other devices wait for.
            try:
                candidates.close()
            except ValueError as error:
                # One that is being pulled from in another thread is that thread's to close.
                if "already executing" not in str(error):
                    raise
            _remove_module(kernels_path)
            _remove_module(path)

    def _place_of(self, kept: Path, text: str) -> Path:
        """Where to keep a module: the second one of a problem, which holds another config, has _2 after its name."""
        digests, digest = self._kept[kept.name], _digest(text)
        if digest not in digests:
            digests.append(digest)
        number = digests.index(digest) + 1
        return kept if number == 1 else kept.with_name(f"{kept.stem}_{number}.py")

    def _compile(
        self, configs: Sequence[Config], module: GeneratedModule, kernels_path: str, job: Job, first: Collection[str]
    ) -> Generator[Candidate, None, None]:
        """Yield each candidate when the last of its binaries is ready."""
        problem = job.session.problem
        op = get_op(problem.op)
        if first:
            configs = sorted(configs, key=lambda config: config.name not in first)
        specs: dict[str, KernelSpec] = {}
        sharers: dict[Hashable, _Sharers] = {}
        waiting: dict[str, list[_Sharers]] = defaultdict(list)
        # A binary that is there tells what a candidate without room needs.
        never = {name for name, unfit in job.unfit.items() if unfit.outcome is not Outcome.OVER_RESOURCES}
        for config in dict.fromkeys(configs):
            if config.name in never:
                continue
            # Asking for the specs of each config would take longer than all the rest.
            what = compiled_of(config)
            if what not in sharers:
                made_of = kernel_specs(problem, config, op, module.source_sha256, module.arch)
                needed = {self.farm.key(spec): spec for spec in made_of}
                specs |= needed
                sharers[what] = _Sharers(tuple(needed), len(needed))
                for key in needed:
                    waiting[key].append(sharers[what])
            sharers[what].configs.append(config)
        results: dict[str, Binary | Failure] = {}
        with self._lock:
            cached_before = self.farm.counts.cached
            # Patience counts what brought nothing in the order of promise, in which the cache may have the last.
            in_turn = self.budget.patience > 0
            for result in self.farm.compile(kernels_path, specs.values(), lambda: job.enough, in_turn=in_turn):
                results[result.key] = result
                for these in waiting.pop(result.key):
                    these.missing -= 1
                    if these.missing == 0:
                        yield from self._candidates(these.configs, [results[key] for key in these.keys], job, first)
            left = (config.name for these in sharers.values() if these.missing for config in these.configs)
            job.unfit |= dict.fromkeys((name for name in left if name not in job.unfit), _LEFT_OUT)
            failed = sum(isinstance(result, Failure) for result in results.values())
            job.on_compiled(len(results) - failed, failed, self.farm.counts.cached - cached_before)

    def _candidates(
        self, configs: Sequence[Config], made: Sequence[Binary | Failure], job: Job, first: Collection[str]
    ) -> Iterator[Candidate]:
        """Those of `configs`, which share all binaries, that are candidates."""
        new = [config.name for config in configs if config.name not in job.unfit]
        binaries = [result for result in made if isinstance(result, Binary)]
        if unfit := self._unfit(configs[0], made):
            job.unfit |= dict.fromkeys(new, unfit)
            if new and not any(isinstance(result, Failure) and result.from_outside for result in made):
                job.on_unfit(new, unfit)
        if len(binaries) < len(made):
            return
        plan = self._plan(job.session.problem, configs[0])
        for config in configs:
            candidate = Candidate(config, tuple(binaries), plan, tuple(run_time_values(config).items()))
            job.binaries[config.name] = main_binary(config, binaries)
            if config.name not in job.unfit and self._is_to_be_measured(candidate, job, first):
                job.ready[config.name] = candidate
                yield candidate

    def _plan(self, problem: GemmProblem, config: Config) -> str:
        """That of all configs with the binaries of this one."""
        return plan_text(product_of(problem, get_op(problem.op), self.arch), config, self.gpu)

    def _unfit(self, config: Config, made: Sequence[Binary | Failure]) -> Unfit | None:
        """Why configs with these binaries cannot run; `config` is any of them."""
        for result in made:
            if isinstance(result, Failure):
                return Unfit(result.outcome, result.message)
        main = main_binary(config, [result for result in made if isinstance(result, Binary)])
        reason = fits(main.resources, config.num_warps, self.gpu)
        return Unfit(Outcome.OVER_RESOURCES, reason) if reason else None

    def _is_to_be_measured(self, candidate: Candidate, job: Job, first: Collection[str]) -> bool:
        name = candidate.config.name
        if (launch := launch_of(candidate.config, candidate.binaries)) is not None and not self.budget.every:
            measured = job.launches.setdefault(launch, name)
            if measured != name and name not in first:
                job.unfit[name] = Unfit(Outcome.IDENTICAL, f"same machine code and launch as {measured}")
                return False
        return True


@dataclass
class _Sharers:
    """Configs that share all binaries: the keys of these, in the order of launches, and how many are missing."""

    keys: tuple[str, ...]
    missing: int
    configs: list[Config] = field(default_factory=list)


def _remove_module(path: Path) -> None:
    """Remove a module and what Python made of it when it was imported."""
    path.unlink(missing_ok=True)
    made = Path(importlib.util.cache_from_source(str(path)))
    made.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        made.parent.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiled_of(config: Config) -> Hashable:
    """What `kernel_specs` looks at: equal for configs that share their binaries."""
    return compiled_in(config)


def launch_of(config: Config, binaries: Sequence[Binary]) -> Hashable | None:
    """What the hardware is given for one call of `config`: equal for two configs that it cannot tell apart.

    None when a binary is too old to say what its code is.
    """
    code = [(binary.resources.code_sha256, binary.resources.shared_bytes) for binary in binaries]
    if any(digest is None for digest, _ in code):
        return None
    seen = tuple(each for each in config.values.items() if not PARAMETERS.by_name[each[0]].compiler_only)
    return config.family, seen, *code
