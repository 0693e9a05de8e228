"""`Setting`: what one run works with, from its options and the machine."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from genkern.cli.target import RunTarget, choose_target, make_profiler, versions
from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm, background_jobs
from genkern.compile.kernels_file import KernelsFile, MadeFor
from genkern.compile.remote.dask_pool import DaskPool
from genkern.errors import InputError
from genkern.file_io import cache_folder, shown_path
from genkern.files.gemm_entry import GemmDefaults, check_defaults
from genkern.gemm.gpus import DetectedDevice, detect_devices, gpu_for_arch
from genkern.journal.header import generator
from genkern.journal.run_folder import modules_folder, run_folder
from genkern.kernels.cute.release import cute_installed
from genkern.kernels.cute.source_file import sha256_of
from genkern.kernels.cute.user_families import family_files as family_files
from genkern.ops.command_line import option_fields
from genkern.profiling.early_process import EarlyProcess
from genkern.search.command_line import limit_option, strategy_option
from genkern.search.cost_model.constants import constants_for, shipped_constants
from genkern.search.limit import Limit
from genkern.search.strategies import ZERO, ChosenStrategy
from genkern.space.space import Space
from genkern.timing.device_lock import DeviceLock
from genkern.timing.libraries import AITER, CUTE, ONE_BY_ONE, OURS, parse_libraries
from genkern.timing.profiler import Profiler
from genkern.timing.session import TOLERANCE, Budget


@dataclass(frozen=True)
class Setting:
    """The options, the device that they mean, and what follows from both.

    defaults: the options' values for sizes that do not have their own
    budget: how much to measure
    versions: versions that results depend on, including the driver's if it is known
    strategy: the search strategy
    limit: when the search of a size ends
    kernels: the file from which kernels that the cache lacks are taken; None if none is given
    early: the measured process that started with the command, if any
    """

    options: argparse.Namespace
    target: RunTarget
    defaults: GemmDefaults
    budget: Budget
    versions: Mapping[str, str]
    strategy: ChosenStrategy
    limit: Limit
    kernels: KernelsFile | None = None
    early: EarlyProcess | None = None

    @property
    def results_path(self) -> str:
        """-o, or a default that differs for predicted and measured times, so that the two never mix."""
        predicted = "" if self.target.measured else "_predicted"
        return self.options.tuning_results_file or f"output/tuning_results_{self.target.arch}{predicted}.yaml"

    @property
    def checks(self) -> str:
        """What is checked when tuning: "all" finalists, the "winner", or "none".

        "none" with --no_check; and if times are predicted, unless --compare asks for a check of the winner.
        """
        if self.options.no_check:
            return "none"
        if self.target.measured:
            return "all" if self.options.compare else "winner"
        return "winner" if self.options.compare else "none"

    @property
    def predicts(self) -> bool:
        """True if winners are predicted without compiling anything: there is no GPU, and no option asks for kernels."""
        options = self.options
        return not (self.target.measured or options.compile or options.keep or options.cluster)

    @property
    def device_indices(self) -> tuple[int, ...]:
        """The GPUs to measure on; (0,) without a GPU."""
        return self.target.gpu_ids or (0,)

    @contextlib.contextmanager
    def build_environment(self, console: Console, lanes: int = 1) -> Iterator[BuildEnvironment]:
        """Context with the build environment of this run, and a folder for its modules and logs. Raises OutputError.

        With several `lanes` (sizes under way per GPU), the GPU measures most of the time. Fewer workers then compile,
        so that the measuring processes have cores, unless --jobs is given.
        """
        options, folder = self.options, cache_folder(self.options.cache_dir)
        asked = {"-j", "--jobs", "--num_threads"} & options.given
        cache = BinaryCache(folder / "binaries", self.kernels)
        cache.remove_abandoned()
        note_kept_elsewhere(cache, console)
        with contextlib.ExitStack() as stack:
            own = stack.enter_context(modules_folder(folder))
            # Not in the cache's folder, which may be on a slow file system that nodes share.
            everyones = Path(tempfile.gettempdir())
            temporary = stack.enter_context(run_folder(everyones, "genkern", "another TMPDIR"))
            made_for = MadeFor.here(self.target.triton, self.versions["triton"])
            farm = Farm(
                *(cache, self.target.triton, self.versions["triton"]),
                jobs=options.jobs if lanes == 1 or asked else background_jobs(options.jobs),
                timeout_s=options.timeout,
                temporary_dir=str(temporary),
                may_compile=options.may_compile,
                pool=DaskPool(options.cluster, cache, made_for, console.print) if options.cluster else None,
            )
            stack.callback(farm.close)
            yield BuildEnvironment(
                farm,
                self.target.gpu,
                self.target.arch,
                self.budget,
                init_type=options.init_type,
                module_dir=str(own),
                keep_modules=options.keep,
                kept_dir=str(folder / "modules"),
            )

    def profiler(
        self, index: int, build_environment: BuildEnvironment, device_lock: DeviceLock | None = None
    ) -> Profiler:
        """Return the profiler of GPU number `index`, whose lock is `turn`. Raises ProfilerError if its program is
        missing."""
        where = str(build_environment.farm.cache.folder), build_environment.module_dir
        is_first = index == self.device_indices[0] and (device_lock is None or device_lock.number == 0)
        early = self.early if is_first else None
        rehearses = self.checks != "none"
        return make_profiler(self.target, self.options.profiler, index, *where, device_lock, early, rehearses=rehearses)

    @property
    def _calibration(self) -> str:
        """A digest of the constants that were fitted on this GPU; "" if the shipped constants are used."""
        constants = constants_for(self.target.gpu)
        if constants == shipped_constants(self.target.gpu):
            return ""
        return hashlib.sha256(json.dumps(asdict(constants), sort_keys=True).encode()).hexdigest()[:16]

    def journal_header(self, spaces: Mapping[str, Space], time_source: str) -> dict[str, object]:
        """Return what the facts of a journal depend on, and whether the run has --all."""
        budget = asdict(self.budget)
        # Left out at their defaults, since headers of older runs do not have them.
        since = {"atol": TOLERANCE, "rtol": TOLERANCE}
        return {
            **self.versions,
            "generator": generator(),
            "arch": self.target.arch,
            "device": self.target.device_name,
            "devices": self.target.clocks,
            "time_source": time_source,
            "space": {op: {"name": space.name, "sha256": _digest(space)} for op, space in sorted(spaces.items())},
            "budget": {name: value for name, value in budget.items() if name not in ("timeout_s", *since)},
            **{name: budget[name] for name, usual in since.items() if budget[name] != usual},
            "strategy": self.strategy.said,
            **({"limit": self.limit.said} if self.limit.said else {}),
            **({"families": families} if (families := _families()) else {}),
            **({"calibration": calibration} if (calibration := self._calibration) else {}),
            "init_type": self.options.init_type,
            "errRatio": self.options.errRatio,
            "checks": self.checks,
            "all": self.options.all,
            **({"shared_gpu": True} if self.options.shared_gpu else {}),
        }


def note_kept_elsewhere(cache: BinaryCache, console: Console) -> None:
    """Print where new kernels go if the cache cannot be written to."""
    if (own := cache.kept_elsewhere) is not None:
        console.print(
            f"note: {shown_path(str(cache.folder))} can only be read: kernels that it lacks are kept in "
            f"{shown_path(str(own))}"
        )


def _families() -> dict[str, str]:
    """Return the digests of the user's family files, which the keys of their binaries contain too."""
    return {file.name: sha256_of(str(file))[:16] for file in family_files()}


def _digest(space: Space) -> str:
    """Return a digest of the contents of a space."""
    families = [(family.family, family.ranges, family.rules) for family in space.families]
    said = json.dumps([space.archs, space.ops, space.default, families, space.rules])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def make_setting(options: argparse.Namespace, early: EarlyProcess | None = None) -> Setting:
    """Return the setting that the options mean on this machine. Raises InputError or ProfilerError."""
    target = choose_target(options, _devices())
    if early is not None and not target.measured:
        early.close()
    found = versions() | ({"driver": target.driver} if target.driver else {})
    defaults, strategy = make_defaults(options, target.arch), strategy_option(options, _usual_strategy(options, target))
    budget, limit = make_budget(options, target, strategy), limit_option(options, strategy)
    path = options.kernels or os.environ.get("GENKERN_KERNELS")
    kernels = KernelsFile(path) if path else None
    return Setting(options, target, defaults, budget, found, strategy, limit, kernels, early)


def _devices() -> list[DetectedDevice]:
    """Return `detect_devices()`. On machines with nvidia-smi, import NumPy meanwhile: both take 0.1 s."""
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(detect_devices)
        if shutil.which("nvidia-smi") is not None:
            with contextlib.suppress(ImportError):
                import numpy  # noqa: F401
    return found.result()


def _usual_strategy(options: argparse.Namespace, target: RunTarget) -> str | None:
    """Return the strategy of a run that names none; None for the usual default.

    Without a GPU it is the first choice of the architecture's learned model, since no measurement could correct the
    model. None if there is no such model, or if the times of many candidates are asked for.
    """
    wants_many = options.profile_file is not None or options.bucket is not None
    if target.measured or wants_many:
        return None
    # Imports NumPy, which nothing else at the start of a run needs.
    from genkern.search.guided.model import learned_of

    return ZERO if learned_of(target.arch) is not None else None


def make_defaults(options: argparse.Namespace, arch: str) -> GemmDefaults:
    """Return the options' values for sizes that do not have their own. Raises InputError if they contradict each
    other."""
    types = options.dtype_a, options.dtype_b, options.dtype_c
    layout = not options.col_a, options.row_b
    defaults = GemmDefaults(
        options.op, *types, *layout, options.bias_vector, options.activation, option_fields(options)
    )
    try:
        check_defaults(defaults, arch)
    except InputError as error:
        raise InputError(f"command line: {error}") from None
    return defaults


def require_arch(options: argparse.Namespace, arch: str) -> None:
    """Raise InputError for tuning options that no device of the architecture supports, before the device is known."""
    make_defaults(options, arch)
    parse_libraries(options.libtype)
    _require_icache_flush(options, gpu_for_arch(arch).vendor)


def _require_icache_flush(options: argparse.Namespace, vendor: str) -> None:
    if options.icache_flush and vendor != "nvidia":
        raise InputError("--icache_flush works on NVIDIA GPUs only; run without it")


def _libraries(text: str, vendor: str) -> str:
    """Return the libraries that may win, joined by commas.

    text: the value of --libtype: names of libraries, which are all kept, or "all" for the installed libraries that
        work on GPUs of this vendor
    """
    others = {name for of, names in ONE_BY_ONE.items() if of != vendor for name in names}
    others |= (set() if cute_installed() else {CUTE}) | (set() if importlib.util.find_spec(AITER) else {AITER})
    return ",".join(name for name in parse_libraries(text).split(",") if name in text.lower() or name not in others)


def make_budget(options: argparse.Namespace, target: RunTarget, strategy: ChosenStrategy) -> Budget:
    """Return how much to measure; by default the weights rotate through twice the last-level cache.

    Raises InputError for --icache_flush on a device that does not support it, and if times are predicted and --libtype
    names no kernels of genkern.
    """
    _require_icache_flush(options, target.gpu.vendor if target.measured else "")
    libraries = _libraries(options.libtype, target.gpu.vendor)
    if options.tunes and not target.measured and not set(libraries.split(",")).intersection(OURS):
        raise InputError(
            f"--libtype {options.libtype}: a library can only be timed on a GPU, and this run predicts times: run it "
            f"on a machine with a {target.arch} GPU, or add {' or '.join(OURS)}"
        )
    rotating = options.rotating_tensor
    return Budget(
        protocol=options.protocol,
        warmup=options.warmup,
        final_rounds=options.num_iters or options.iters,
        min_rounds=options.num_iters or Budget.min_rounds,
        atol=options.atol,
        rtol=options.rtol,
        icache_flush=options.icache_flush,
        exhaustive=strategy.every,
        timeout_s=options.timeout,
        libraries=libraries,
        rotating_mb=2 * target.gpu.last_level_cache_mib if rotating is None else rotating,
    )
