"""One run of the command: read the sizes, set up the stages, do what the options ask."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from genkern.cache import BinaryCache
from genkern.candidates_file import CandidatesFile
from genkern.check import Checker, DeviceChecker
from genkern.errors import InputError
from genkern.farm import Farm
from genkern.gemm_entry import GemmDefaults, check_defaults, resolve
from genkern.journal import Journal
from genkern.op import check_problem
from genkern.problem import GemmProblem
from genkern.profiling.session import Budget
from genkern.progress import Progress
from genkern.prune import explain, prune
from genkern.recorder import Recorder
from genkern.results import ResultsFile, RunFacts
from genkern.run_folder import run_folder
from genkern.sizes import read_sizes
from genkern.space import Space, load_space
from genkern.target import RunTarget, choose_target, make_device_checker, make_profiler, versions
from genkern.tune import Provenance, Tuner, tune_all
from genkern.verify import benchmark, interpreter_checker, verify
from genkern.workshop import Workshop


def run(options: argparse.Namespace, console: Console) -> int:
    """Do what the options ask; returns the exit status. Raises GenkernError for what a user can put right."""
    target = choose_target(options)
    defaults = make_defaults(options, target)
    budget = make_budget(options, target)
    if options.compare_wo_tuning or options.benchmark:
        with bench(options, target, budget) as workshop:
            check_or_time = verify if options.compare_wo_tuning else benchmark
            return check_or_time(options, target, defaults, workshop, console)
    problems = read_problems(options, target, defaults, console)
    spaces = {op: load_space(options.space, target.arch, op) for op in {problem.op for problem in problems}}
    if options.explain:
        for problem in problems:
            space = spaces[problem.op]
            console.print(f"{problem.size} {problem.op} on {target.gpu.name}, space {space.name}:")
            console.print(explain(prune(space, problem, target.gpu)))
        return 0
    return tune(problems, spaces, options, target, defaults, budget, console)


def read_problems(
    options: argparse.Namespace, target: RunTarget, defaults: GemmDefaults, console: Console
) -> tuple[GemmProblem, ...]:
    """The sizes to work on, each once. Raises InputError."""
    problems: tuple[GemmProblem, ...]
    if options.gemm_size_file is None:
        resolved = resolve({"M": options.m, "N": options.n, "K": options.k}, defaults, target.arch)
        problems, notes = (resolved.problem,), resolved.notes
    else:
        sizes = read_sizes(options.gemm_size_file, defaults, target.arch)
        problems, notes = sizes.problems, sizes.notes
    for note in notes:
        console.print(f"note: {note}")
    for problem in problems:
        check_problem(problem, target.arch)
    return problems


def tune(
    problems: Sequence[GemmProblem],
    spaces: dict[str, Space],
    options: argparse.Namespace,
    target: RunTarget,
    defaults: GemmDefaults,
    budget: Budget,
    console: Console,
) -> int:
    """Tune what is not tuned yet; results and journal grow with every size. Everything that can be refused is first."""
    path = results_path(options, target)
    with sole_run(path):
        return _tune(path, problems, spaces, options, target, defaults, budget, console)


def _tune(
    path: str,
    problems: Sequence[GemmProblem],
    spaces: dict[str, Space],
    options: argparse.Namespace,
    target: RunTarget,
    defaults: GemmDefaults,
    budget: Budget,
    console: Console,
) -> int:
    found = versions()
    facts = RunFacts(target.arch, target.gpu.compute_units, found, predicted=not target.measured)
    results = ResultsFile(path, facts, defaults, sort=options.sort)
    todo = [problem for problem in problems if options.all or problem not in results.problems]
    if len(todo) < len(problems):
        done = len(problems) - len(todo)
        console.print(f"note: {done} of {len(problems)} sizes are in {results.path} already (--all tunes them again)")
    if not todo:
        return 0
    results.require_room(todo)
    with contextlib.ExitStack() as stack:
        workshop = stack.enter_context(bench(options, target, budget))
        places = workshop.farm.cache.folder, workshop.module_dir
        profilers = []
        for index in target.gpu_ids or (0,):
            profiler = make_profiler(target, options.profiler, index, *map(str, places))
            stack.callback(profiler.close)
            profilers.append((index, profiler))
        interpreter = None
        if options.compare and not target.measured:
            interpreter = interpreter_checker(options.errRatio, workshop)
            stack.callback(interpreter.close)
        header = journal_header(found, target, profilers[0][1].time_source, spaces, budget, options)
        journal = Journal(f"{results.path}.journal", header, start_anew=options.all)
        stack.callback(journal.close)
        candidates = CandidatesFile(options.profile_file, todo) if options.profile_file else None
        progress = stack.enter_context(Progress(console))
        provenance = Provenance(target.arch, target.device_name, tuple(sorted(found.items())))
        tuners = []
        for index, profiler in profilers:
            checker: Checker | None = interpreter
            if options.compare and target.measured:
                device = make_device_checker(target, profiler, index, *map(str, places))
                stack.callback(device.close)
                checker = DeviceChecker(device.check, options.errRatio)
            tuners.append(
                Tuner(spaces.__getitem__, workshop, profiler, checker, journal, progress, provenance, budget, index)
            )
        recorder = Recorder(results, candidates, console, batch=options.batch, verbose=options.verbose > 0)
        try:
            tune_all(tuners, todo, recorder.finished)
        finally:
            recorder.flush()
    recorder.summary(target.gpu, workshop.farm.counts)
    if not target.measured:
        console.print(
            "These times are predicted by a model. To measure, run the same command on a machine with "
            f"a {target.arch} GPU and PyTorch."
        )
    return 1 if recorder.failed else 0


@contextlib.contextmanager
def bench(options: argparse.Namespace, target: RunTarget, budget: Budget) -> Iterator[Workshop]:
    """The workshop of a run, with a folder for its modules and logs."""
    folder = cache_folder(options)
    cache = BinaryCache(folder / "binaries")
    farm = Farm(cache, target.triton, versions()["triton"], jobs=options.jobs, timeout_s=options.timeout)
    with run_folder(folder / "modules") as own:
        yield Workshop(
            farm,
            target.gpu,
            target.arch,
            budget,
            init_type=options.init_type,
            module_dir=str(own.parent if options.keep else own),
            keep_modules=options.keep,
        )


def cache_folder(options: argparse.Namespace) -> Path:
    """--cache_dir, or its default. Raises InputError when there is no home folder to put it in."""
    default = os.environ.get("GENKERN_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "genkern"
    try:
        return Path(options.cache_dir or default).expanduser()
    except RuntimeError:
        raise InputError("there is no home folder for compiled kernels: give --cache_dir DIR") from None


def results_path(options: argparse.Namespace, target: RunTarget) -> str:
    """-o, or a default that never puts predicted and measured times into one file."""
    predicted = "" if target.measured else "_predicted"
    return options.tuning_results_file or f"output/tuning_results_{target.arch}{predicted}.yaml"


def make_defaults(options: argparse.Namespace, target: RunTarget) -> GemmDefaults:
    """What the options say of sizes that do not say it themselves. Raises InputError when it does not fit together."""
    types = options.dtype_a, options.dtype_b, options.dtype_c
    defaults = GemmDefaults(options.op, *types, not options.col_a, options.row_b, options.bias_vector)
    try:
        check_defaults(defaults, target.arch)
    except InputError as error:
        raise InputError(f"command line: {error}") from None
    return defaults


def make_budget(options: argparse.Namespace, target: RunTarget) -> Budget:
    """How much to measure; the weights rotate through twice the last-level cache unless the user says otherwise.

    Raises InputError for --icache_flush on a device on which nothing is flushed.
    """
    if options.icache_flush and not (target.measured and target.gpu.vendor == "nvidia"):
        raise InputError("--icache_flush works on NVIDIA GPUs only; run without it")
    rotating = options.rotating_tensor
    return Budget(
        protocol=options.protocol,
        warmup=options.warmup,
        final_rounds=options.iters,
        icache_flush=options.icache_flush,
        timeout_s=options.timeout,
        rotating_mb=2 * target.gpu.last_level_cache_mib if rotating is None else rotating,
    )


def journal_header(
    found: dict[str, str],
    target: RunTarget,
    time_source: str,
    spaces: dict[str, Space],
    budget: Budget,
    options: argparse.Namespace,
) -> dict[str, object]:
    """What the journal's facts depend on."""
    digest = hashlib.sha256(repr(sorted(spaces.items())).encode()).hexdigest()[:16]
    return {
        **found,
        "arch": target.arch,
        "device": target.device_name,
        "time_source": time_source,
        "space": digest,
        "budget": {k: v for k, v in asdict(budget).items() if k != "timeout_s"},
        "init_type": options.init_type,
        "errRatio": options.errRatio,
        "compare": options.compare,
    }
