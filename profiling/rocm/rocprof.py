"""Kernel times on AMD GPUs: rocprofv3, and legacy rocprof, around one process that launches many configs.

Never run on AMD hardware: written from the sources and recorded outputs of rocprofiler-sdk (ROCm 6.2 to 7.x)
and rocprofiler, and tested with programs that take their command lines and write their files.

A process takes a chunk of the candidates. It logs each config before it launches it, so that when it dies or
hangs the config that did it is known: that one is reported, the others go on in a fresh process.
"""

from __future__ import annotations

import glob
import itertools
import os
import shutil
import site
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import genkern
from genkern.errors import ProfilerError
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.profiling.clocks import throttled_rounds, usual_mhz
from genkern.profiling.rocm.dispatch_match import LogEntry, match_dispatches, parse_clock, parse_launch_log
from genkern.profiling.rocm.kernel_trace import KernelTrace, parse_kernel_trace
from genkern.profiling.rocm.launch_job import (
    PLACES,
    JobPaths,
    LaunchLogWatch,
    Visit,
    final_visits,
    is_place,
    kept_samples,
    screen_calls,
    spread_symbols,
    write_job,
)
from genkern.profiling.rocm.rocpd import read_rocpd
from genkern.profiling.rocm.rocprof_command import find_executable, profiled_environment, rocprof_argv, rocprofv3_argv
from genkern.profiling.rocm.vendor_trace import vendor_times
from genkern.profiling.supervisor import Exit, run_supervised, tail
from genkern.python_child import module_argv
from genkern.timing.libraries import OURS, VENDOR, finals_name, library_of
from genkern.timing.profiler import Unshared
from genkern.timing.session import Session

HARNESS = module_argv("genkern.profiling.harness")
_TRACE_NAME = "trace"
# So many processes in a row without one measured config mean that the device or the profiler is at fault.
_MAX_BARREN = 3
# A config that ran well in processes that died before they wrote their trace is launched so often in all.
_MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class _Turn:
    """What became of one visit: its entry in the log and, when the trace has all of it, its times.

    Of the vendor library, the time of the last call only.
    """

    visit: Visit
    entry: LogEntry
    durations_us: tuple[float, ...] | None

    @property
    def name(self) -> str:
        return self.visit.name


@dataclass(frozen=True)
class _Run:
    """One profiled process. `turns` are the visits it began, `rest` those it did not reach.

    `library` says of each library's call what it was in the trace, or why it has no time. `clock_mhz` are the
    readings of the clock, each by the round of the finals that follows it.
    """

    turns: list[_Turn]
    rest: list[Visit]
    exit: Exit
    note: str
    library: Mapping[str, str] = field(default_factory=dict)
    clock_mhz: Mapping[int, float] = field(default_factory=dict)

    @property
    def died(self) -> bool:
        # Legacy rocprof ends with 0 whatever happened, so the log counts as well as the exit code.
        unfinished = bool(self.rest) or any(turn.entry.interrupted for turn in self.turns)
        return unfinished or self.exit.timed_out or self.exit.returncode != 0

    @property
    def description(self) -> str:
        said = self.exit.last_line
        return " ".join(f"{self.exit.description}{f': {said}' if said else ''}; {self.note}".split())


class _LaunchProfiler(Unshared, ABC):
    """What both drivers share; a driver adds its command line."""

    time_source = ""
    _program = ""

    def __init__(
        self,
        executable: str | None = None,
        *,
        chunk_size: int = 500,
        harness: Sequence[str] = HARNESS,
        edge_s: float = 180.0,
        grace_s: float = 20.0,
    ) -> None:
        """`edge_s` limits the start and the end of each process, `grace_s` the time to write a trace after SIGTERM.

        Raises ProfilerError when the profiler's program cannot be found.
        """
        self._executable = find_executable(self._program, executable, os.environ)
        self._chunk_size = chunk_size
        self._harness = tuple(harness)
        self._edge_s = edge_s
        self._grace_s = grace_s

    def start(self) -> None:
        """The profiler is started anew for every request."""

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        """Yield one Measurement per candidate. Raises ProfilerError when nothing can be measured at all."""
        calls = screen_calls(session.budget)
        waiting = itertools.chain.from_iterable(units)
        barren = 0
        while chunk := list(itertools.islice(waiting, self._chunk_size)):
            queue = deque([[Visit(candidate, calls) for candidate in spread_symbols(chunk)]])
            while queue:
                run = self._run(session, queue.popleft())
                measured, again = 0, []
                for turn in run.turns:
                    if turn.durations_us is not None:
                        measured += 1
                        yield self._measured(turn.name, "screen", kept_samples(session.budget, turn.durations_us))
                    elif turn.entry.finished and run.died and turn.visit.attempt < _MAX_ATTEMPTS:
                        again.append(replace(turn.visit, attempt=turn.visit.attempt + 1))
                    else:
                        yield self._failed(turn, run, "screen")
                # Those that ran well but lost their times first, by themselves: they are not the ones that break it.
                queue.extendleft(visits for visits in (run.rest, again) if visits)
                barren = self._count_barren(barren, measured, run)

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """Time the finalists and the vendor library round-robin in shuffled order, in one process.

        In the order of `finalists`, then the library's, named "vendor": not seen where its time is not certain. Then
        the library's algorithms that the process found best, where there are such. When one of them ends the process,
        the others are all timed again without it, so that their times compare. A process that ends too early three
        times in a row by nobody's fault says what it says. Samples of throttled rounds are discarded and counted, of
        one that has no others they are kept.
        """
        places = [each for library, of in PLACES.items() if session.budget.may_win(library) for each in of]
        return self._raced(session, finalists, [VENDOR, *places])

    def _raced(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """The same for these calls of libraries."""
        racers = {candidate.config.name: candidate for candidate in finalists}
        named: dict[str, str] = {}
        ended: dict[str, Measurement] = {}
        barren = attempts = 0
        while pending := [candidate for name, candidate in racers.items() if name not in ended]:
            visits = final_visits(session, [*pending, *(call for call in calls if call not in ended)])
            run = self._run(session, visits)
            samples: dict[str, dict[int | None, float]] = {visit.name: {} for visit in visits}
            for turn in run.turns:
                if turn.durations_us is not None:
                    samples[turn.name][turn.visit.round] = turn.durations_us[-1]
                elif not turn.entry.finished:
                    ended[turn.name] = self._failed(turn, run, "final")
            barren = self._count_barren(barren, sum(map(len, samples.values())), run)
            attempts = 0 if any(name in ended for name in samples) else attempts + 1
            timed = all(taken for name, taken in samples.items() if name in racers)
            named |= {turn.name: turn.entry.call for turn in run.turns if turn.entry.call}
            if run.died and (run.rest or not timed) and attempts < _MAX_ATTEMPTS:
                continue
            throttled, usual = throttled_rounds(run.clock_mhz), usual_mhz(run.clock_mhz)
            for name, taken in samples.items():
                if name not in ended and taken:
                    kept = [us for number, us in taken.items() if number not in throttled] or list(taken.values())
                    ended[name] = replace(
                        self._measured(name, "final", tuple(kept)),
                        message=run.library.get(name, ""),
                        discarded=len(taken) - len(kept),
                        usual_mhz=usual,
                    )
                elif name not in ended:
                    ended[name] = self._not_seen(name, run, "final")
        found = [replace(ended[name], config=named.get(name, name)) for name in (*racers, *calls) if name in ended]
        # A place that no algorithm took, or that one lost, is nobody's.
        return [each for each in found if not is_place(each.config)]

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """The same rounds once more, in another process, with these calls of libraries."""
        return self._raced(session, finalists, list(dict.fromkeys([VENDOR, *map(finals_name, calls)])))

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        """The first: a process of its own under the profiler would take longer than what it tells is worth."""
        return [candidate.config.name for candidate in candidates[:most]]

    def close(self) -> None:
        """Nothing to stop: every process has ended before `screen` yields and before `retime` returns."""

    @abstractmethod
    def _command(self, program: Sequence[str], paths: JobPaths) -> list[str]:
        """The profiler's command line around `program`."""

    def _run(self, session: Session, visits: Sequence[Visit]) -> _Run:
        work_dir = os.path.abspath(session.work_dir)
        try:
            os.makedirs(work_dir, exist_ok=True)
            paths = JobPaths(tempfile.mkdtemp(prefix=f"{self.time_source}-", dir=work_dir))
        except OSError as error:
            raise ProfilerError(f"cannot write {work_dir}: {error.strerror}; choose another work folder") from error
        argv = self._command([*self._harness, paths.job], paths)
        write_job(session, visits, paths)
        limit_s = session.budget.timeout_s
        ended = run_supervised(
            argv,
            env=_environment(session),
            timeout_s=2 * self._edge_s + len(visits) * limit_s,
            grace_s=self._grace_s,
            stdout_path=paths.stdout,
            stderr_path=paths.stderr,
            watch=LaunchLogWatch(paths.launch_log, len(visits), limit_s, self._edge_s, _rounds(visits)),
        )
        if not ended.stderr_tail:  # rpl_run.sh sends the program's standard error to its standard output
            ended = replace(ended, stderr_tail=tail(paths.stdout))
        log = Path(paths.launch_log).read_text(encoding="utf-8", errors="replace")
        entries = self._entries(log, paths, visits)
        clock_mhz = parse_clock(log, paths.launch_log)
        run = _Run([], list(visits[len(entries) :]), ended, f"see {paths.folder}", clock_mhz=clock_mhz)
        turns = [_Turn(visit, entry, None) for visit, entry in zip(visits, entries, strict=False)]
        died = replace(run, turns=turns).died
        trace, note = _read_trace(paths, died)
        matched = match_dispatches(entries, trace.dispatches)
        for name in {entry.config for entry in entries if library_of(entry.config) not in OURS}:
            times = vendor_times(entries, trace, name)
            run = replace(run, library={**run.library, name: times.message})
            for place, entry in enumerate(entries):
                time_us = times.turns_us[place]
                if entry.config == name:
                    matched[place] = None if time_us is None else (time_us,)
        turns = [replace(turn, durations_us=durations) for turn, durations in zip(turns, matched, strict=True)]
        # That the library has no algorithm for a place is nothing to look into.
        missing = [entry for entry, found in zip(entries, matched, strict=True) if found is None]
        if not died and all(entry.error is not None and is_place(entry.config) for entry in missing):
            shutil.rmtree(paths.folder, ignore_errors=True)
        return replace(run, turns=turns, note=f"{note}; {run.note}" if note else run.note)

    def _entries(self, log: str, paths: JobPaths, visits: Sequence[Visit]) -> list[LogEntry]:
        """The log's entries, one for each visit that was begun, or ProfilerError when they do not fit the job."""
        entries = parse_launch_log(log, paths.launch_log)
        if len(entries) > len(visits):
            raise ProfilerError(f"{paths.launch_log} has more entries than the job: two processes wrote to it")
        fitted = []
        for entry, visit in zip(entries, visits, strict=False):
            name, calls = visit.name, visit.calls
            if entry.config != name or (entry.finished and entry.calls != calls):
                raise ProfilerError(
                    f"{paths.launch_log} has {entry.calls} calls of {entry.config} where the job has {calls} of {name}"
                )
            if entry.interrupted and not entry.symbols:
                # It may have launched some of its calls: they are in the trace and must not count as another's.
                entry = replace(entry, symbols=visit.symbols, calls=calls)
            fitted.append(entry)
        return fitted

    def _measured(self, name: str, stage: str, samples_us: tuple[float, ...]) -> Measurement:
        median_us = statistics.median(samples_us)
        return Measurement(name, Outcome.MEASURED, self.time_source, stage, median_us, samples_us)

    def _failed(self, turn: _Turn, run: _Run, stage: str) -> Measurement:
        if turn.entry.error is not None:
            return Measurement(
                turn.name, Outcome.LAUNCH_FAILED, self.time_source, stage, message=" ".join(turn.entry.error.split())
            )
        if turn.entry.finished:
            return self._not_seen(turn.name, run, stage)
        outcome = Outcome.TIMED_OUT if run.exit.timed_out else Outcome.CRASHED
        return Measurement(turn.name, outcome, self.time_source, stage, message=run.description)

    def _not_seen(self, name: str, run: _Run, stage: str) -> Measurement:
        reason = "its kernels are not all in the trace, or could be another config's"
        if library_of(name) not in OURS:
            reason = run.library.get(name) or "the vendor library is not timed: no turn of it was reached"
        message = f"{reason}; {run.note}"
        return Measurement(name, Outcome.NOT_SEEN, self.time_source, stage, message=message)

    def _count_barren(self, barren: int, measured: int, run: _Run) -> int:
        if measured:
            return 0
        barren += run.died or any(turn.entry.finished for turn in run.turns)
        if barren >= _MAX_BARREN:
            raise ProfilerError(
                f"{self.time_source}: {barren} processes in a row measured nothing; the last: {run.description}"
                + (f"\n{run.exit.stderr_tail}" if run.exit.stderr_tail else "")
            )
        return barren


class RocprofV3Profiler(_LaunchProfiler):
    """`rocprofv3 --kernel-trace`: ROCm 6.2 and later. The program is `executable`, $ROCPROFV3, or on PATH."""

    time_source = "rocprofv3"
    _program = "rocprofv3"

    def _command(self, program: Sequence[str], paths: JobPaths) -> list[str]:
        return rocprofv3_argv(self._executable, program, paths.trace, _TRACE_NAME)


class RocprofProfiler(_LaunchProfiler):
    """Legacy `rocprof --stats`, for a ROCm without rocprofv3. It runs kernels one at a time and is slow."""

    time_source = "rocprof"
    _program = "rocprof"

    def _command(self, program: Sequence[str], paths: JobPaths) -> list[str]:
        return rocprof_argv(self._executable, program, os.path.join(paths.trace, f"{_TRACE_NAME}.csv"))


def _rounds(visits: Sequence[Visit]) -> int:
    return len({visit.round for visit in visits if visit.round is not None})


def _environment(session: Session) -> dict[str, str]:
    environment = profiled_environment(os.environ, session.device_index)
    environment.pop("TRITON_INTERPRET", None)
    # Only the checkout, never all of sys.path: rocprofv3 is a Python program too, maybe of another version.
    root = str(Path(genkern.__file__).parents[1])
    if root not in site.getsitepackages():
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, inherited] if inherited else [root])
    return environment


def _read_trace(paths: JobPaths, died: bool) -> tuple[KernelTrace, str]:
    """Return what the profiler wrote, from CSV or else a database, and a note on what is odd about it.

    No file is normal for a process that launched nothing. Raises ProfilerError for a file that is no trace,
    unless the process died and may have left it so.
    """
    folder = glob.escape(paths.trace)
    for pattern in ("**/*kernel_trace.csv", f"{_TRACE_NAME}.csv", "**/*.db"):
        found = sorted(glob.glob(os.path.join(folder, pattern), recursive=True))
        # Legacy rocprof leaves its own database beside the CSV.
        found = [path for path in found if os.path.isfile(path)]
        if found:
            break
    else:
        return KernelTrace(()), "the profiler wrote no trace"
    try:
        traces = [_read_file(path) for path in found]
    except ProfilerError as error:
        if died:
            return KernelTrace(()), str(error)
        raise
    dispatches = sorted((d for trace in traces for d in trace.dispatches), key=lambda d: (d.start_ns, d.end_ns))
    invalid = sum(trace.invalid_rows for trace in traces)
    truncated = sum(trace.truncated_rows for trace in traces)
    note = f"the trace has {invalid} rows without usable times and {truncated} cut off" if invalid or truncated else ""
    return KernelTrace(tuple(dispatches), invalid, truncated), note


def _read_file(path: str) -> KernelTrace:
    if path.endswith(".db"):
        return read_rocpd(path)
    return parse_kernel_trace(Path(path).read_text(encoding="utf-8", errors="replace"), path)
