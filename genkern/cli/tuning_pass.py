"""`TuningPass`: the tuners of a run work on some sizes, from opening their journal to closing it."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from genkern.cli.candidates_file import condensed
from genkern.cli.setting import Setting
from genkern.cli.target import make_device_checker
from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.farm import FarmCounts
from genkern.errors import ProfilerError
from genkern.file_io import shown_path
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import Start
from genkern.journal.header import OldJournal, UnusableJournal, generator
from genkern.journal.journal import Journal
from genkern.journal.run_files import RunFiles
from genkern.journal.run_folder import run_folder
from genkern.profiling.device_rows import DeviceRows
from genkern.space.space import Space
from genkern.timing.device_lock import DeviceLock
from genkern.timing.profiler import Profiler
from genkern.tuning.checkers import Checker, DeviceChecker
from genkern.tuning.devices import ProblemTuner, tune_all
from genkern.tuning.interpreter import interpreter_checker
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint
from genkern.tuning.processes.driver_process import Shared, driver_processes
from genkern.tuning.progress import Progress, ProgressFile
from genkern.tuning.tune import Provenance, Report, Tuner

if TYPE_CHECKING:
    from genkern.tuning.predictor import Predictor
from genkern.cli.target import shares_device
from genkern.ops.op import get_op

# Predicting: a process with fewer sizes than the first number is not worth its start; the second is the most sizes that
# a process gets at a time.
_LEAST_OF_PROCESS, _MOST_AT_ONCE = 4, 16


class ReportSink(Protocol):
    """Receives the reports of a pass."""

    def finished(self, report: Report) -> None:
        """Record the report on one size. Raises OutputError if a file cannot be written."""

    def lost(self, device_index: int, error: ProfilerError, left: int) -> None:
        """Note that a device is used no more."""

    def flush(self) -> None:
        """Write the reports that are not written yet. Raises OutputError."""


@dataclass(frozen=True)
class TuningPass:
    """One pass over sizes.

    files: the files of its journal
    incumbents, orders: passed to the tuners
    header: further entries of the journal's header
    progress_file: is told each step of the pass
    with_candidates: whether reports keep their candidates
    opened: called with the journal before it is used
    """

    setting: Setting
    spaces: Mapping[str, Space]
    files: RunFiles
    console: Console
    incumbents: Mapping[GemmProblem, Config]
    orders: SumOrderConstraint = ANY_ORDER
    header: Mapping[str, object] = field(default_factory=dict)
    progress_file: ProgressFile | None = None
    with_candidates: bool = False
    opened: Callable[[Journal], object] = lambda journal: None

    def tune(self, problems: Sequence[GemmProblem], keeper: ReportSink) -> FarmCounts:
        """Tune all problems, then rename the journal to that of a finished run. Raises GenkernError.

        If the setting `predicts` (no GPU, and no option asks for kernels), winners are predicted: nothing is compiled,
        and there is no journal.
        """
        if self.setting.predicts:
            self._predict(problems, keeper)
            return FarmCounts()
        setting, options, target = self.setting, self.setting.options, self.setting.target
        with contextlib.ExitStack() as stack:
            lanes = lanes_of(setting, problems)
            # The first lane of every GPU comes before second lanes.
            places = [(index, lane) for lane in range(lanes) for index in setting.device_indices][: len(problems)]
            build_environment = stack.enter_context(setting.build_environment(self.console, lanes))
            turns = [device_lock_of(build_environment, index, lane) if lanes > 1 else None for index, lane in places]
            profilers = [
                setting.profiler(index, build_environment, device_lock)
                for (index, _), device_lock in zip(places, turns, strict=True)
            ]
            closings = [stack.enter_context(contextlib.ExitStack()) for _ in profilers]
            for profiler, closing in zip(profilers, closings, strict=True):
                closing.callback(profiler.close)
            if len(profilers) == 1:
                # The process takes longer to start than the first compile. If there are several, each driver process
                # starts its own.
                profilers[0].start()
            checkers = make_checkers(places, profilers, build_environment, setting, closings)
            header = setting.journal_header(self.spaces, profilers[0].time_source)
            journal = open_journal(self.files, {**header, **self.header}, options.all, self.console)
            stack.callback(journal.close)
            self.opened(journal)
            journal.started(start_record(options.command, problems))
            progress = Progress(self.console, self.progress_file)
            versions = tuple(sorted(setting.versions.items()))
            provenance = Provenance(target.arch, target.device_name, versions, options.shared_gpu and target.measured)
            own = [
                Tuner(
                    *(self.spaces.__getitem__, build_environment, profiler, checker, journal, progress),
                    *(provenance, setting.budget),
                    strategy=setting.strategy,
                    limit=setting.limit,
                    device_index=index,
                    incumbents=self.incumbents,
                    check_all=setting.checks == "all",
                    orders=self.orders,
                )
                for (index, _), profiler, checker in zip(places, profilers, checkers, strict=True)
            ]
            tuners: Sequence[ProblemTuner] = own
            if len(own) > 1:
                shared = Shared(build_environment.farm, journal, progress)
                slim = functools.partial(condensed, with_candidates=self.with_candidates)
                tuners = stack.enter_context(driver_processes(own, closings, shared, slim))
            else:
                stack.callback(close_concurrently, closings[0].close, build_environment.farm.close)
                stack.callback(own[0].close)
            # Connecting may start threads, after which nothing may fork.
            build_environment.farm.connect()
            stack.enter_context(progress)
            try:
                tune_all(tuners, problems, keeper.finished, keeper.lost)
            finally:
                keeper.flush()
        # Only an unfinished run is resumed.
        os.replace(journal.path, self.files.finished_journal)
        if options.keep:
            self.console.print(f"modules: {build_environment.kept_dir}")
        return build_environment.farm.counts

    def _predict(self, problems: Sequence[GemmProblem], keeper: ReportSink) -> None:
        """Predict the winners of all problems, several at a time.

        There is no journal: a run that was stopped continues with the sizes that are missing in its results.
        """
        setting, target, options = self.setting, self.setting.target, self.setting.options
        # Imports NumPy, which nothing else at the start of a run needs.
        from genkern.tuning.predictor import Predictor

        versions = tuple(sorted(setting.versions.items()))
        predictor = Predictor(
            self.spaces,
            target.gpu,
            Provenance(target.arch, target.device_name, versions),
            setting.budget,
            self.incumbents,
            self.orders,
            self.with_candidates,
        )
        with contextlib.ExitStack() as stack:
            if setting.checks != "none":
                folder = str(stack.enter_context(run_folder(Path(tempfile.gettempdir()), "genkern", "another TMPDIR")))
                checker = interpreter_checker(options.errRatio, folder)
                stack.callback(checker.close)
                predictor = replace(predictor, checker=checker, module_dir=folder)
            try:
                for report in _reports(predictor, problems, options.jobs if predictor.checker is None else 1):
                    keeper.finished(report)
            finally:
                keeper.flush()


def _reports(predictor: Predictor, problems: Sequence[GemmProblem], processes: int) -> Iterator[Report]:
    """Yield the reports on these problems, in order, computed by `processes` processes."""
    processes = min(processes, -(-len(problems) // _LEAST_OF_PROCESS))
    if processes < 2:
        yield from map(predictor.report, problems)
        return
    each = max(1, min(_MOST_AT_ONCE, len(problems) // (4 * processes)))
    parts = [problems[start : start + each] for start in range(0, len(problems), each)]
    # joblib takes as long to import as genkern.
    from genkern.compile import pool

    for reports in pool.map_in_order(functools.partial(_reports_of, predictor), parts, processes):
        yield from reports


def _reports_of(predictor: Predictor, problems: Sequence[GemmProblem]) -> list[Report]:
    return [condensed(predictor.report(each), with_candidates=predictor.with_candidates) for each in problems]


def close_concurrently(*closes: Callable[[], object]) -> None:
    """Call these functions at the same time, since each waits for processes to end; releasing a GPU takes 0.1 s.

    Raises the exception of the first function that fails.
    """
    with ThreadPoolExecutor(len(closes)) as threads:
        ending = [threads.submit(close) for close in closes]
    for one in ending:
        one.result()


def device_lock_of(build_environment: BuildEnvironment, device_index: int, number: int) -> DeviceLock:
    """Return the lock of device `device_index` for its process (lane) `number`. All lanes share the lock file."""
    return DeviceLock(
        str(Path(build_environment.farm.temporary_dir or build_environment.module_dir) / f"gpu_{device_index}"), number
    )


def make_checkers(
    places: Sequence[tuple[int, int]],
    profilers: Sequence[Profiler],
    build_environment: BuildEnvironment,
    setting: Setting,
    closings: Sequence[contextlib.ExitStack],
) -> list[Checker | None]:
    """Return a checker per profiler, or None in its place if nothing is checked.

    A checker is closed by the item of `closings` with the same index. Without a GPU all profilers share one checker,
    Triton's interpreter, which the first item closes.
    """
    options, target = setting.options, setting.target
    if setting.checks == "none":
        return [None] * len(profilers)
    if not target.measured:
        interpreter = interpreter_checker(options.errRatio, build_environment.module_dir)
        closings[0].callback(interpreter.close)
        return [interpreter] * len(profilers)
    checkers: list[Checker | None] = []
    for (index, _), profiler, closing in zip(places, profilers, closings, strict=True):
        device = make_device_checker(
            target, profiler, index, str(build_environment.farm.cache.folder), build_environment.module_dir
        )
        closing.callback(device.close)
        checkers.append(DeviceChecker(device.check, device.check_call, options.errRatio, DeviceRows(device)))
    return checkers


def start_record(command: str, problems: Sequence[GemmProblem]) -> Start:
    """Return the record of this process for the journal."""
    where = os.getcwd(), socket.gethostname(), os.getpid()
    return Start(tuple(problems), command, *where, round(time.time(), 3), generator())


def open_journal(files: RunFiles, header: Mapping[str, object], anew: bool, console: Console) -> Journal:
    """Return the journal of an interrupted run like this one, else a new one.

    Raises UnusableJournal if the journal is of a run with other options. With `anew` (--all), or if another version of
    genkern wrote it, prints the reason, renames that journal, and returns a new one.
    """
    try:
        return Journal(files.journal, header)
    except UnusableJournal as error:
        if not (anew or isinstance(error, OldJournal)):
            raise
        kept = files.replaced_journal
        os.replace(files.journal, kept)
        why = "--all tunes again" if anew else "this run starts from the beginning"
        console.print(f"note: {error.reason}; {why}, and it is kept as {shown_path(str(kept))}")
        return Journal(files.journal, header)


# CPUs per lane, for its driver process, its measured process and its share of the compiles.
_CPUS = 4
# The share of a GPU's memory that all lanes may take. A lane takes _LANE_BYTES, and _TIMES the bytes of its operands:
# for copies of the weights, and for the inputs and references of a check.
_SHARE, _LANE_BYTES, _TIMES = 0.8, 4 * 2**30, 5


def lanes_of(setting: Setting, problems: Sequence[GemmProblem]) -> int:
    """Return the number of lanes: at most --lanes, and as many as there are CPUs, memory and sizes for.

    Returns 1 if a size's search has a limit in seconds, which other lanes would use up; if every candidate is measured,
    since the GPU then is the bottleneck; and if the profiler cannot share a GPU. There are no more lanes than sizes per
    GPU, so that a single size is compiled on all cores.
    """
    alone = setting.limit.seconds is not None or setting.budget.every
    if alone or not shares_device(setting.target, setting.options.profiler):
        return 1
    largest = max(sum(operand.size_bytes for operand in get_op(each.op).operands(each)) for each in problems)
    room = _SHARE * setting.target.gpu.memory_gb * 1e9
    most: int = setting.options.lanes
    cpus: int = setting.options.jobs // len(setting.device_indices)
    sizes = -(-len(problems) // len(setting.device_indices))
    return max(1, min(most, sizes, cpus // _CPUS, int(room / (_TIMES * largest + _LANE_BYTES))))
