"""`BuildEnvironment`: opens a builder for a problem and its configs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from genkern.compile.candidate_builder import CandidateBuilder, ProblemBuild
from genkern.compile.farm import Farm
from genkern.file_io import write_whole
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.timing.session import Budget, Session


class BuildEnvironment:
    """Opens builders for problems of one architecture. Several threads may use one build environment at the same time.

    Modules are imported from `module_dir`, which no other user can change. With `keep_modules` they are also written to
    `kept_dir` (by default the same folder), for people to read.
    """

    def __init__(
        self,
        farm: Farm,
        gpu: Gpu,
        arch: str,
        budget: Budget,
        *,
        init_type: str,
        module_dir: str,
        keep_modules: bool,
        kept_dir: str | None = None,
    ) -> None:
        self.farm = farm
        self.gpu = gpu
        self.arch = arch
        self.budget = budget
        self._init_type = init_type
        self.module_dir = str(Path(module_dir).resolve())
        self.kept_dir = self.module_dir if kept_dir is None else str(Path(kept_dir).resolve())
        self._keep_modules = keep_modules
        # Digests of the modules that this run has kept, by file name.
        self._kept: dict[str, list[str]] = defaultdict(list)
        # The number of open builders that need each module: a problem may be opened again before it is closed.
        self._needed: Counter[Path] = Counter()
        self._placing = threading.Lock()

    @contextlib.contextmanager
    def open(
        self, problem: GemmProblem, configs: Sequence[Config], device_index: int, first: Collection[str] = ()
    ) -> Iterator[CandidateBuilder]:
        """Context with the builder of `problem` for `configs`.

        The module files that workers and the measured process import are removed afterwards. The complete module stays
        if modules are kept. Of configs whose launches are identical, one is a candidate and the others are `identical`;
        configs named in `first` are always candidates. An exhaustive budget makes every config a candidate.
        """
        module = generate(problem, configs, self.arch, self.gpu)
        kept = Path(self.kept_dir) / module.file_name
        if self._keep_modules:
            with self._placing:
                write_whole(str(self._place_of(kept, module.text)), module.text)
        # Named by their content, since workers and measured processes keep imported modules by path, and by this
        # process's id, so that no other process deletes them.
        named = f"{os.getpid()}_{_digest(module.kernels_text + module.measured_text)}.py"
        kernels, measured = (Path(self.module_dir, f"{stem}_{named}") for stem in ("kernels", kept.stem))
        with self._there(kernels, module.kernels_text), self._there(measured, module.measured_text):
            where = device_index, self.module_dir, self.budget, self._init_type
            session = Session(str(measured), problem, self.arch, *where)
            every = self.budget.every
            builder = CandidateBuilder(
                ProblemBuild(session), self.farm, self.gpu, module, str(kernels), first=first, copies=every
            )
            try:
                yield builder
            finally:
                builder.close()

    @contextlib.contextmanager
    def _there(self, path: Path, text: str) -> Iterator[None]:
        """Context in which the module file exists; builders share it, and the last one removes it."""
        with self._placing:
            if not self._needed[path]:
                write_whole(str(path), text)
            self._needed[path] += 1
        try:
            yield
        finally:
            with self._placing:
                self._needed[path] -= 1
                if not self._needed[path]:
                    del self._needed[path]
                    _remove_module(path)

    def _place_of(self, kept: Path, text: str) -> Path:
        """Return the path of a module to keep. A problem's second module, with other configs, has _2 after its name."""
        digests, digest = self._kept[kept.name], _digest(text)
        if digest not in digests:
            digests.append(digest)
        number = digests.index(digest) + 1
        return kept if number == 1 else kept.with_name(f"{kept.stem}_{number}.py")


def _remove_module(path: Path) -> None:
    """Remove a module and its compiled .pyc file."""
    path.unlink(missing_ok=True)
    made = Path(importlib.util.cache_from_source(str(path)))
    made.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        made.parent.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
