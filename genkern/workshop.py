"""Workshop: from a problem and its configs to candidates for measuring: generate, compile, drop what cannot fit."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genkern.cache import Failure
from genkern.config import Config
from genkern.families import kernel_specs
from genkern.farm import Farm
from genkern.files import write_whole
from genkern.generate import GeneratedModule, generate
from genkern.gpus import Gpu
from genkern.limits import fits
from genkern.op import get_op
from genkern.problem import GemmProblem
from genkern.profiling.session import Budget, Session
from genkern.records import Binary, Candidate, Outcome


@dataclass(frozen=True)
class Unfit:
    """Why a config is no candidate."""

    outcome: Outcome
    message: str


@dataclass
class Job:
    """One problem on the bench. Iterating over `candidates` compiles; `ready` and `unfit` fill as it goes on."""

    session: Session
    candidates: Iterator[Candidate]
    ready: dict[str, Candidate] = field(default_factory=dict)
    unfit: dict[str, Unfit] = field(default_factory=dict)
    binaries: dict[str, Binary] = field(default_factory=dict)


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
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def open(self, problem: GemmProblem, configs: Sequence[Config], device_index: int) -> Iterator[Job]:
        """The job of `problem` for `configs`; its generated module goes away afterwards unless it is to be kept."""
        module = generate(problem, configs, self.arch)
        path = Path(self.module_dir) / module.file_name
        kernels = kernels_only(module.text)
        # Named by its content, since workers keep what they have imported, by path; and ours alone to delete.
        digest = hashlib.sha256(kernels.encode()).hexdigest()[:16]
        kernels_path = path.with_name(f"kernels_{os.getpid()}_{digest}.py")
        write_whole(str(path), module.text)
        write_whole(str(kernels_path), kernels)
        session = Session(str(path), problem, self.arch, device_index, self.module_dir, self.budget, self._init_type)
        job = Job(session, iter(()))
        job.candidates = candidates = self._compile(configs, module, str(kernels_path), job)
        try:
            yield job
        finally:
            # An error on the way leaves it half way through, with the lock that other devices wait for.
            # One that is being pulled from in another thread is that thread's to close.
            with contextlib.suppress(ValueError):
                candidates.close()
            kernels_path.unlink(missing_ok=True)
            if not self._keep_modules:
                path.unlink(missing_ok=True)

    def _compile(
        self, configs: Sequence[Config], module: GeneratedModule, kernels_path: str, job: Job
    ) -> Generator[Candidate, None, None]:
        """Yield each candidate when the last of its binaries is ready."""
        problem = job.session.problem
        op = get_op(problem.op)
        needs = {config: kernel_specs(problem, config, op, module.source_sha256) for config in configs}
        keys = {spec: self.farm.key(spec) for spec in dict.fromkeys(s for specs in needs.values() for s in specs)}
        waiting: dict[str, list[Config]] = defaultdict(list)
        for config, specs in needs.items():
            for spec in specs:
                waiting[keys[spec]].append(config)
        missing = {config: len(specs) for config, specs in needs.items()}
        results: dict[str, Binary | Failure] = {}
        with self._lock:
            for result in self.farm.compile(kernels_path, keys):
                results[result.key] = result
                for config in waiting.pop(result.key):
                    missing[config] -= 1
                    if missing[config] == 0:
                        made = [results[keys[spec]] for spec in needs[config]]
                        if candidate := self._candidate(config, made, job):
                            yield candidate

    def _candidate(self, config: Config, made: Sequence[Binary | Failure], job: Job) -> Candidate | None:
        name = config.name
        binaries = []
        for result in made:
            if isinstance(result, Failure):
                job.unfit[name] = Unfit(result.outcome, result.message)
                return None
            binaries.append(result)
        candidate = Candidate(config, tuple(binaries))
        job.binaries[name] = candidate.main
        if reason := fits(candidate.main.resources, config.num_warps, self.gpu):
            job.unfit[name] = Unfit(Outcome.OVER_RESOURCES, reason)
            return None
        job.ready[name] = candidate
        return candidate


def kernels_only(text: str) -> str:
    """A generated module up to its table of configs: all that a compile worker needs.

    Importing 20,000 configs takes half a second, in each of the workers and for each size.
    """
    return text.partition("\nConfig = namedtuple(")[0]
