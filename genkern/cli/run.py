"""One run of the command: reads the sizes, refuses what cannot work before it starts, then does what the options
ask."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.arguments import shard_of
from genkern.cli.bucket import bucketed, write_buckets
from genkern.cli.candidates_file import CandidatesFile
from genkern.cli.expert_table import table_of, write_table
from genkern.cli.options import ABOUT_MEASURING, ABOUT_SEARCHING
from genkern.cli.order_selection import Groups, OrderSelection
from genkern.cli.other_tuners import unread_variables
from genkern.cli.recorder import Recorder
from genkern.cli.setting import Setting, make_setting
from genkern.cli.tuning_pass import TuningPass
from genkern.cli.verify import benchmark, verify
from genkern.compile.kernels_file import MadeFor
from genkern.errors import InputError, ResultsError
from genkern.file_io import is_stream, require_writable, shown_path
from genkern.files.gemm_entry import resolve
from genkern.files.results import ResultsFile, RunFacts, require_same_run
from genkern.files.sizes import parse_sizes, read_sizes
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.journal.bug_log import BugLog
from genkern.journal.facts import read_ends
from genkern.journal.file_lock import sole_run
from genkern.journal.header import generator, origin_differences
from genkern.journal.run_files import RunFiles
from genkern.journal.run_folder import run_folder
from genkern.kernels.catalogue import is_deterministic
from genkern.ops.op import check_problem, refusal
from genkern.profiling.early_process import EarlyProcess
from genkern.safe_stdio import has_no_reader
from genkern.screen import Screen, put
from genkern.search.strategies import ZERO
from genkern.space.explanation import parameters_table
from genkern.space.languages import space_for_libraries
from genkern.space.prune import explain, prune
from genkern.space.space import Space
from genkern.timing.libraries import named_libraries_without_kernels
from genkern.tuning.progress import ProgressFile

Spaces = Mapping[str, Space]


def run(options: argparse.Namespace, console: Console, early: EarlyProcess | None = None) -> int:
    """Do what the options ask and return the exit status. Raises GenkernError for what a user can put right.

    `early` is a measured process that started with the command; it measures on the first device.
    """
    setting = make_setting(options, early)
    note_idle_options(setting, console)
    note_kernels(setting, console)
    if options.compare_wo_tuning:
        return verify(setting, console)
    if options.benchmark:
        return benchmark(setting, console)
    if not (options.all or options.explain):
        # Checked before a long list of sizes is read.
        with _naming_output(setting.results_path):
            require_same_run(setting.results_path, facts_of(setting), setting.defaults)
    problems = read_problems(setting, console)
    if options.bucket is not None:
        problems = bucketed(problems, setting)
        options.profile_file = options.profile_file or f"{setting.results_path}.candidates.csv"
    table = table_of(options, problems, setting.target.key) if options.tunes else None
    spaces = spaces_of(problems, setting)
    if options.explain:
        return show_pruning(problems, spaces, setting, console)
    if options.profile_file:
        CandidatesFile.require(options.profile_file)
    with locked_run_files(setting.results_path) as files:
        status = tune(problems, spaces, setting, files, console)
    if table is not None and status != 3:
        write_table(table, problems, setting, console)
    if options.bucket is not None and status != 3:
        write_buckets(problems, setting, console)
    if isinstance(console, Screen):
        console.put_next(next_step(setting, status))
    return status


def spaces_of(problems: Sequence[GemmProblem], setting: Setting) -> dict[str, Space]:
    """Return the space of each format of the problems. Raises InputError for a space file that cannot be used."""
    asked = setting.options.space, setting.target.arch
    libraries = setting.budget.libraries.split(",")
    spaces = {op: space_for_libraries(*asked, op, libraries) for op in {problem.op for problem in problems}}
    if setting.options.deterministic:
        spaces = {op: space.asked_first("not_deterministic") for op, space in spaces.items()}
    return spaces


def next_step(setting: Setting, status: int) -> str:
    """Return what to do after a run that tuned, as a line for the user."""
    options, path = setting.options, shlex.quote(setting.results_path)
    if status == 3:
        return f"report the bug, with {RunFiles(setting.results_path).bug_log}"
    if status:
        return "the same command with -o2 candidates.csv says why a size has no winner"
    if not setting.target.measured:
        return f"run the same command on a machine with a {setting.target.arch} GPU and PyTorch to measure"
    if is_stream(setting.results_path) or options.batch_invariant:
        return "genkern pack RESULTS -o FILE.genkern makes a bundle that programs call"
    return f"genkern pack {path} -o FILE.genkern, then GENKERN_CONFIG=FILE.genkern lets a program call the winners"


@contextlib.contextmanager
def locked_run_files(results_path: str) -> Iterator[RunFiles]:
    """Context manager: locks the results file for this run, and yields the run's files. Raises OutputError.

    If the results go to a stream, no file can lie beside them and the run cannot be resumed: the journal is in a
    temporary folder.
    """
    if not is_stream(results_path):
        with sole_run(results_path):
            yield RunFiles(results_path)
        return
    require_writable(results_path)
    with run_folder(Path(tempfile.gettempdir()), "genkern-journal", "another TMPDIR") as folder:
        yield RunFiles(str(folder / "results"))


def note_idle_options(setting: Setting, console: Console) -> None:
    """Print which options, and which variables of other tuners, have no effect, and on which GPUs the run measures."""
    options = setting.options
    for line in unread_variables(os.environ):
        console.print(f"note: {line}")
    if options.all_gpus and len(setting.target.gpu_ids) > 1:
        console.print(f"note: {len(setting.target.gpu_ids)} GPUs measure, as with AITER's tuners (--mp 1: the first)")
    if setting.target.measured or options.compare_wo_tuning or options.explain:
        return
    for names, advice in ((ABOUT_MEASURING, ""), (ABOUT_SEARCHING if setting.predicts else (), ": --compile searches")):
        if idle := [option for option in names if option in options.given]:
            verb = "has" if len(idle) == 1 else "have"
            console.print(f"note: {', '.join(idle)} {verb} no effect on predicted times{advice}")
    if untimed := named_libraries_without_kernels(options.libtype):
        console.print(
            f"note: --libtype {', '.join(untimed)}: a library is timed on a GPU only, so genkern's kernels win"
        )


def note_kernels(setting: Setting, console: Console) -> None:
    """Print a note if the file of --kernels was made for another target or compiler, so that it has no fitting
    kernel."""
    if (kernels := setting.kernels) is not None:
        here = MadeFor.here(setting.target.triton, setting.versions["triton"])
        if why := kernels.made_for.mismatch(here):
            console.print(f"note: {shown_path(kernels.path)}: {why}")


def read_problems(setting: Setting, console: Console) -> tuple[GemmProblem, ...]:
    """Return the sizes to work on, without duplicates. Raises InputError."""
    options, arch = setting.options, setting.target.arch
    problems: tuple[GemmProblem, ...]
    if options.model_dir is not None:
        if options.model_list is None:
            raise InputError("--model_dir: write the sizes with genkern shapes, and give that list as -i")
        text, told = options.model_list
        sizes = parse_sizes(text, options.model_dir, setting.defaults, arch)
        problems, notes = sizes.problems, (*told, *sizes.notes)
    elif options.gemm_size_file is None:
        # With --bucket the values of M come from --bucket; this one is a placeholder.
        resolved = resolve(
            {"M": 1 if options.bucket else options.m, "N": options.n, "K": options.k}, setting.defaults, arch
        )
        problems, notes = (resolved.problem,), resolved.notes
    else:
        sizes = read_sizes(options.gemm_size_file, setting.defaults, arch)
        problems, notes = sizes.problems, sizes.notes
    if options.shard is not None and options.batch_invariant:
        raise InputError("--shard parts sizes that --batch_invariant tunes together: give one of them")
    if options.all_bias:
        both = dict.fromkeys(replace(problem, bias=bias) for problem in problems for bias in (False, True))
        problems = tuple(problem for problem in both if not refusal(problem, arch))
    problems = shard_of(problems, options.shard)
    for note in notes:
        console.print(f"note: {note}")
    for problem in problems:
        check_problem(problem, arch)
    return problems


def show_pruning(problems: Sequence[GemmProblem], spaces: Spaces, setting: Setting, console: Console) -> int:
    """Print what each rule drops for each size (--explain), until the reader of the output leaves."""
    for problem in problems:
        if has_no_reader(sys.stdout):
            break
        space = spaces[problem.op]
        pruned = prune(space, problem, setting.target.gpu)
        values = {
            "size": problem.size,
            "problem": problem.name,
            "gpu": setting.target.gpu.name,
            "space": space.name,
            "kept": len(pruned.kept),
            "binaries": pruned.binaries,
            "total": pruned.total,
            "illegal": pruned.illegal,
            "dropped": pruned.dropped,
        }
        lines = [f"{problem.size} {problem.op} on {setting.target.gpu.name}, space {space.name}:", explain(pruned)]
        put(console, "pruned", values, [*lines, *filter(None, [parameters_table(space)])])
    return 0


def tune(problems: Sequence[GemmProblem], spaces: Spaces, setting: Setting, files: RunFiles, console: Console) -> int:
    """Tune the sizes that are not tuned yet; results and journal grow with every size.

    Returns 1 if a size has no winner, 3 if a bug in genkern is the reason.
    """
    options, facts = setting.options, facts_of(setting)
    results = open_results(setting, facts, problems if options.all else ())
    if results.others:
        console.print(f"note: {results.others}")
    done = results.problems - results.not_deterministic if options.deterministic else results.problems
    groups = Groups((), ())
    if options.batch_invariant:
        groups = Groups.of(problems, results, anew=options.all)
        problems = [*problems, *(problem for problem in groups.problems if problem not in problems)]
        # Batch-invariant rows need not be the fastest in any order, and a new order is judged against the fastest:
        # these sizes are tuned again.
        done = done - results.invariant.intersection(groups.problems)
    if not options.all and (outdated := outdated_rows(files, results, done.intersection(problems))):
        console.print(f"note: {counted(len(outdated))} of kernels that genkern now generates differently: tuned again")
        done -= outdated
    retire_journal(files, done)
    if options.all and not (options.batch_invariant and OrderSelection.is_unfinished(files)):
        # A further pass that was stopped is resumed: sizes that have a row are done.
        done = set()
    remaining = [problem for problem in problems if problem not in done]
    if len(remaining) < len(problems):
        there = f"{len(problems) - len(remaining)} of {len(problems)} sizes are in {results.path} already"
        unchecked = ", --compare_wo_tuning checks them" if options.compare else ""
        console.print(f"note: {there} (--all tunes them again{unchecked})")
        header = setting.journal_header(spaces, "")
        if otherwise := origin_differences_text(files, results, set(problems).difference(remaining), header):
            console.print(f"note: {otherwise} (--all tunes them again)")
    status = tune_each(remaining, results, spaces, setting, files, console) if remaining else 0
    if not groups.left:
        return status
    results = open_results(setting, facts, problems if options.all else ())
    return max(status, OrderSelection(setting, spaces, files, results, console).choose(groups.left))


def tune_each(
    remaining: Sequence[GemmProblem],
    results: ResultsFile,
    spaces: Spaces,
    setting: Setting,
    files: RunFiles,
    console: Console,
) -> int:
    """Tune these sizes, and record each as it finishes; returns the status as `tune` does."""
    options, target = setting.options, setting.target
    results.require_room(remaining)
    candidates = CandidatesFile(options.profile_file, remaining) if options.profile_file else None
    incumbents = {
        problem: config
        for problem, config in results.configs.items()
        if not options.deterministic or is_deterministic(problem, config)
        # Predictions do not depend on earlier choices.
        if target.measured or not (setting.predicts or setting.strategy.name == ZERO)
    }
    progress_file = ProgressFile(options.progress_file) if options.progress_file else None
    work = TuningPass(
        *(setting, spaces, files, console, incumbents),
        progress_file=progress_file,
        with_candidates=candidates is not None,
    )
    bug_log = BugLog(RunFiles(setting.results_path).bug_log, setting.versions, options.command)
    reporting = {"batch": options.batch, "verbose": options.verbose > 0, "errors": options.compare}
    recorder = Recorder(remaining, results, candidates, console, bug_log, progress_file=progress_file, **reporting)
    counts = work.tune(remaining, recorder)
    recorder.summary(target.gpu, None if setting.predicts else counts)
    if not target.measured:
        console.print("These times are predicted.")
        if setting.predicts or setting.strategy.name == ZERO:
            for line in trust_lines(target.gpu):
                console.print(line)
    return 3 if recorder.bugs else 1 if recorder.failed else 0


def trust_lines(gpu: Gpu) -> list[str]:
    """Return lines that say how far predicted choices and times of a GPU can be trusted."""
    # NumPy takes a quarter as long to import as all of genkern.
    from genkern.search.guided.judged import judged_of
    from genkern.search.guided.times import INTERVAL_SHARE, times_of

    lines, times = [], times_of(gpu.arch)
    if (judged := judged_of(gpu.arch)) is not None:
        lines.append(
            f"The model chose. Share of the best speed that it reaches on sizes that it was not fitted to: {judged}."
        )
    if times is not None and gpu.name in times.devices:
        lines.append(
            f"Intervals hold {INTERVAL_SHARE:.0%} of the measured times of sizes that the model was not fitted to."
        )
    else:
        lines.append(f"Times of {gpu.name} were never measured: the error of these times is unknown.")
    return lines


def facts_of(setting: Setting) -> RunFacts:
    """Return what rows must have in common with this run to count as its results."""
    return RunFacts(setting.target.key, setting.versions, predicted=not setting.target.measured)


def open_results(setting: Setting, facts: RunFacts, again: Collection[GemmProblem]) -> ResultsFile:
    """Return the results file as it is. Raises ResultsError, which names -o."""
    path = setting.results_path
    with _naming_output(path):
        return ResultsFile(path, facts, setting.defaults, sort=setting.options.sort, again=again)


@contextlib.contextmanager
def _naming_output(path: str) -> Iterator[None]:
    """Context that adds to a ResultsError that -o names the file."""
    try:
        yield
    except ResultsError as error:
        if "-o" in str(error):
            raise
        raise ResultsError(f"{error} (results go to {shown_path(path)}: another -o leaves it alone)") from None


def retire_journal(files: RunFiles, done: Collection[GemmProblem]) -> None:
    """Move the journal aside if all its sizes have results: its run was killed after its last result was written.

    The journal of a run with --all stays, since the results file does not tell whether its rows are old or new.
    """
    if files.journal.exists():
        with contextlib.suppress(ResultsError):
            facts = read_ends(files.journal)
            wanted = {problem for start in facts.starts[-1:] for problem in start.problems}
            if wanted and wanted.issubset(done) and not facts.header.get("all"):
                os.replace(files.journal, files.finished_journal)


def outdated_rows(files: RunFiles, results: ResultsFile, done: Collection[GemmProblem]) -> set[GemmProblem]:
    """Return the problems in `done` whose kernels this genkern generates differently from the run that is resumed."""
    with contextlib.suppress(ResultsError, FileNotFoundError):
        if any(start.generator != generator() for start in read_ends(files.journal).starts):
            return results.outdated(done)
    return set()


def counted(rows: int) -> str:
    """Return the number of rows with a verb, such as "2 rows are"."""
    return "1 row is" if rows == 1 else f"{rows} rows are"


def origin_differences_text(
    files: RunFiles, results: ResultsFile, skipped: Collection[GemmProblem], header: Mapping[str, Any]
) -> str:
    """Return what the last run on this file did differently from one with `header`, for sizes that are not tuned again.

    Empty if there is no difference, or the run left no journal.
    """
    with contextlib.suppress(ResultsError, FileNotFoundError):
        last = read_ends(files.finished_journal)
        count = sum(winner.problem in skipped for winner in last.winners())
        different = origin_differences(last.header, header)
        is_other = any(start.generator != generator() for start in last.starts)
        if is_other and (outdated := results.outdated(skipped)):
            different.append(f"{counted(len(outdated))} of kernels that genkern now generates differently")
        if count and different:
            return f"{count} of these {'was' if count == 1 else 'were'} tuned differently: {'; '.join(different)}"
    return ""
