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
from genkern.check import Checker, DeviceChecker, InterpreterChecker
from genkern.errors import InputError
from genkern.farm import Farm
from genkern.gemm_entry import GemmDefaults, resolve
from genkern.journal import Journal
from genkern.op import check_problem
from genkern.problem import GemmProblem
from genkern.profiling.session import Budget
from genkern.progress import Progress
from genkern.prune import explain, prune
from genkern.records import Winner
from genkern.report import candidate_rows, outcome_line, print_winners, write_candidates
from genkern.results import ResultsFile
from genkern.sizes import read_sizes
from genkern.space import Space, load_space
from genkern.target import RunTarget, choose_target, make_device_checker, make_profiler, versions
from genkern.tune import Provenance, Report, Tuner, tune_all
from genkern.verify import benchmark, verify
from genkern.workshop import Workshop


def run(options: argparse.Namespace, console: Console) -> int:
    """Do what the options ask; returns the exit status. Raises GenkernError for what a user can put right."""
    target = choose_target(options)
    defaults = GemmDefaults(
        options.op, options.dtype_a, options.dtype_b, options.dtype_c, not options.col_a, options.row_b, options.bias_vector
    )
    if options.compare_wo_tuning or options.benchmark:
        path = options.gemm_size_file or options.tuning_results_file
        if path is None:
            raise InputError("give the results file with --gemm_size_file FILE")
        with bench(options, target) as (workshop, _):
            action = verify if options.compare_wo_tuning else benchmark
            return action(path, options, target, defaults, workshop, console)
    problems = read_problems(options, target, defaults, console)
    if options.explain:
        for problem in problems:
            space = load_space(options.space, target.arch, problem.op)
            console.print(f"{problem.size} {problem.op} on {target.gpu.name}, space {space.name}:")
            console.print(explain(prune(space, problem, target.gpu)))
        return 0
    return tune(problems, options, target, defaults, console)


def read_problems(
    options: argparse.Namespace, target: RunTarget, defaults: GemmDefaults, console: Console
) -> tuple[GemmProblem, ...]:
    """The sizes to work on, each once. Raises InputError."""
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
    problems: Sequence[GemmProblem], options: argparse.Namespace, target: RunTarget, defaults: GemmDefaults, console: Console
) -> int:
    """Tune what is not tuned yet; the results file and the journal grow with every size."""
    spaces = {op: load_space(options.space, target.arch, op) for op in {problem.op for problem in problems}}
    results_path = options.tuning_results_file or f"output/tuning_results_{target.arch}.yaml"
    found = versions()
    results = ResultsFile(results_path, target.arch, target.gpu.compute_units, found, defaults, sort=options.sort)
    done = set() if options.all else results.problems
    todo = [problem for problem in problems if problem not in done]
    if len(todo) < len(problems):
        console.print(f"{len(problems) - len(todo)} sizes are in {results_path} already (--all tunes them again)")
    if not todo:
        return 0
    budget = make_budget(options, target)
    with bench(options, target, budget) as (workshop, log_dir):
        tuners: list[Tuner] = []
        progress = Progress(console, enabled=options.verbose >= 0)
        with contextlib.ExitStack() as stack:
            profilers = []
            for index in target.gpu_ids or (0,):
                profiler = make_profiler(target, options.profiler, index, str(workshop.farm.cache.folder), log_dir)
                stack.callback(profiler.close)
                profilers.append((index, profiler))
            header = journal_header(found, target, profilers[0][1].time_source, spaces, budget, options)
            journal = Journal(f"{results_path}.journal", header, start_anew=options.all)
            stack.callback(journal.close)
            provenance = Provenance(target.arch, target.device_name, tuple(sorted(found.items())))
            for index, profiler in profilers:
                checker: Checker | None = None
                if options.compare and target.measured:
                    device = make_device_checker(target, profiler, index, str(workshop.farm.cache.folder), log_dir)
                    stack.callback(device.close)
                    checker = DeviceChecker(device.check, options.errRatio)
                elif options.compare:
                    checker = InterpreterChecker(options.errRatio)
                tuners.append(
                    Tuner(spaces.__getitem__, workshop, profiler, checker, journal, progress, provenance, budget, index)
                )
            stack.enter_context(progress)
            writer = _Writer(results, options, console)
            known = [facts.winner for problem in todo if (facts := journal.of(problem)).winner is not None]
            writer.take_over([winner for winner in known if winner is not None])
            open_problems = [problem for problem in todo if journal.of(problem).winner is None]
            try:
                tune_all(tuners, open_problems, writer.finished)
            finally:
                writer.flush()
        writer.summary(target, workshop)
    return 1 if writer.failed else 0


class _Writer:
    """Writes the results as sizes finish, and tells the user."""

    def __init__(self, results: ResultsFile, options: argparse.Namespace, console: Console) -> None:
        self._results = results
        self._options = options
        self._console = console
        self._winners: list[Winner] = []
        self._rows: list[dict[str, object]] = []
        self._unwritten = 0
        self.failed: list[Report] = []

    def take_over(self, winners: Sequence[Winner]) -> None:
        """Winners that the journal of an interrupted run holds."""
        if winners:
            self._winners += winners
            self._unwritten += len(winners)
            self.flush()
            self._console.print(f"{len(winners)} sizes taken over from the journal of the last run")

    def finished(self, report: Report) -> None:
        problem = report.problem
        if self._options.profile_file:
            self._rows += candidate_rows(report)
        if report.winner is None:
            self.failed.append(report)
            self._console.print(f"{problem.size}: no winner: {report.message}")
        else:
            w = report.winner
            self._winners.append(w)
            self._unwritten += 1
            versus = f", {w.vendor_us / w.duration_us:.3f}x vendor" if w.vendor_us else ""
            self._console.print(
                f"{problem.size}: {w.config.name} {w.duration_us:.2f} us, "
                f"{problem.tflops(w.duration_us):.1f} TFLOPS{versus} ({w.time_source})",
            )
        if self._options.verbose:
            times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.stage_s.items())
            self._console.print(f"  {outcome_line(report.outcomes)}; {times}")
        if self._unwritten >= self._options.batch:
            self.flush()

    def flush(self) -> None:
        if self._unwritten:
            self._results.write(self._winners)
            self._unwritten = 0
        if self._options.profile_file and self._rows:
            write_candidates(self._options.profile_file, self._rows)

    def summary(self, target: RunTarget, workshop: Workshop) -> None:
        for note in self._results.notes:
            self._console.print(f"note: {note}")
        if self._winners:
            self._console.print()
            print_winners(self._console, self._winners, target.gpu)
        counts = workshop.farm.counts
        self._console.print(
            f"\n{counts.compiled} binaries compiled, {counts.cached} from the cache, {counts.failed} refused; "
            f"results in {self._results.path}",
        )
        if not target.measured:
            self._console.print(
                "These times are predicted by a model, not measured. To measure, run the same command on a machine "
                f"with a {target.arch} GPU and PyTorch.",
            )


@contextlib.contextmanager
def bench(
    options: argparse.Namespace, target: RunTarget, budget: Budget | None = None
) -> Iterator[tuple[Workshop, str]]:
    """The workshop of a run and the folder for its logs."""
    default = os.environ.get("GENKERN_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "genkern"
    folder = Path(options.cache_dir or default).expanduser()
    cache = BinaryCache(folder / "binaries")
    farm = Farm(cache, target.triton, versions()["triton"], jobs=options.jobs, timeout_s=options.timeout)
    modules = folder / "modules" if options.keep else folder / "modules" / f"run-{os.getpid()}"
    workshop = Workshop(
        farm,
        target.gpu,
        target.arch,
        budget or make_budget(options, target),
        init_type=options.init_type,
        module_dir=str(modules),
        keep_modules=options.keep,
    )
    modules.mkdir(parents=True, exist_ok=True)
    try:
        yield workshop, str(modules)
    finally:
        if not options.keep:
            for leftover in modules.iterdir():
                # What a user needs of a log was printed; an unexpected subfolder stays.
                with contextlib.suppress(OSError):
                    leftover.unlink()
            with contextlib.suppress(OSError):
                modules.rmdir()


def make_budget(options: argparse.Namespace, target: RunTarget) -> Budget:
    """How much to measure; the weights rotate through twice the last-level cache unless the user says otherwise."""
    rotating = options.rotating_tensor
    return Budget(
        protocol=options.protocol,
        warmup=options.warmup,
        final_rounds=options.iters,
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
