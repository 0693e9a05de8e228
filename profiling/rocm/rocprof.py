"""Kernel times on AMD GPUs: rocprofv3, and legacy rocprof, around one process that launches many configs.

Never run on AMD hardware: written from the sources and recorded outputs of rocprofiler-sdk (ROCm 6.2 to 7.x) and
rocprofiler, and tested with fake programs that accept their command lines and write their files.

A process launches a chunk of the candidates. It logs each config before launching it, so if it dies or hangs the
responsible config is known. That config is reported. In screening the other configs continue in a new process; in the
finals they are all timed again.
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
from genkern.profiling.launch_job import (
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
from genkern.profiling.rocm.dispatch_match import LogEntry, match_dispatches, parse_clock, parse_launch_log
from genkern.profiling.rocm.kernel_trace import KernelTrace, parse_kernel_trace
from genkern.profiling.rocm.rocpd import read_rocpd
from genkern.profiling.rocm.rocprof_command import find_executable, profiled_environment, rocprof_argv, rocprofv3_argv
from genkern.profiling.rocm.vendor_trace import vendor_times
from genkern.profiling.supervisor import Exit, run_supervised, tail
from genkern.python_child import module_argv
from genkern.timing.libraries import OURS, VENDOR, finals_name, library_of
from genkern.timing.profiler import ExclusiveDevice
from genkern.timing.session import Session

HARNESS = module_argv("genkern.profiling.harness")
_TRACE_NAME = "trace"
# After this many processes in a row without a measured config, the device or the profiler is at fault.
_MAX_BARREN = 3
# Number of processes in which a config is launched if it runs well but each process dies before it writes its trace.
# Also the number of processes for finals in which no racer is responsible for the end of the process.
_MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class _VisitResult:
    """The result of one visit: its entry in the log and, if the trace is complete for it, its times in microseconds.

    For the vendor library, only the time of the last call.
    """

    visit: Visit
    entry: LogEntry
    durations_us: tuple[float, ...] | None

    @property
    def name(self) -> str:
        return self.visit.name


@dataclass(frozen=True)
class _Run:
    """One profiled process.

    turns: the visits that it began
    rest: the visits that it did not reach
    exit: how the process ended
    note: where its files are, and what is unusual about its trace
    library: for each library call, its kernels in the trace, or why it has no time
    clock_mhz: clock readings by the round of the finals that follows
    """

    turns: list[_VisitResult]
    rest: list[Visit]
    exit: Exit
    note: str
    library: Mapping[str, str] = field(default_factory=dict)
    clock_mhz: Mapping[int, float] = field(default_factory=dict)

    @property
    def died(self) -> bool:
        # Legacy rocprof always exits with 0, so the log is evaluated in addition to the exit code.
        unfinished = bool(self.rest) or any(turn.entry.interrupted for turn in self.turns)
        return unfinished or self.exit.timed_out or self.exit.returncode != 0

    @property
    def description(self) -> str:
        said = self.exit.last_line
        return " ".join(f"{self.exit.description}{f': {said}' if said else ''}; {self.note}".split())


class _LaunchProfiler(ExclusiveDevice, ABC):
    """Common base of both profilers; a subclass adds its command line."""

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
        """Find the profiler's program.

        executable: path of the program; None to search for it
        chunk_size: candidates per process
        harness: command line of the measured process
        edge_s: time limit in seconds for the start and for the end of each process
        grace_s: seconds to write a trace after SIGTERM

        Raises ProfilerError if the program cannot be found.
        """
        self._executable = find_executable(self._program, executable, os.environ)
        self._chunk_size = chunk_size
        self._harness = tuple(harness)
        self._edge_s = edge_s
        self._grace_s = grace_s

    def start(self) -> None:
        """Do nothing, since every request starts the profiler anew."""

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        """Yield one Measurement per candidate. Raises ProfilerError if nothing can be measured at all."""
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
                # First the visits that ran well but lost their times, in a process of their own: they do not cause the
                # failure.
                queue.extendleft(visits for visits in (run.rest, again) if visits)
                barren = self._count_barren(barren, measured, run)

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """Time the finalists and the vendor library round-robin in shuffled order, in one process.

        Returns the finalists in their order, then the library's call, named "vendor" (NOT_SEEN if its time is not
        certain), then the library algorithms that the process found best, if any.

        If one racer ends the process, all others are timed again without it, so that their times are comparable. If no
        racer is responsible, up to three processes are started and the last one's times count. Samples of throttled
        rounds are discarded and counted, unless a racer has no others.
        """
        places = [each for library, of in PLACES.items() if session.budget.may_win(library) for each in of]
        return self._raced(session, finalists, [VENDOR, *places])

    def _raced(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """Race the finalists and these library calls, as in `retime`."""
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
        # Leave out places that no algorithm took.
        return [each for each in found if not is_place(each.config)]

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """Run the same rounds again in another process, with these library calls."""
        return self._raced(session, finalists, list(dict.fromkeys([VENDOR, *map(finals_name, calls)])))

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        """Return the first `most` names: a process under the profiler would cost more than its ranking is worth."""
        return [candidate.config.name for candidate in candidates[:most]]

    def close(self) -> None:
        """Do nothing: every process has ended before `screen` yields and before `retime` returns."""

    @abstractmethod
    def _command(self, program: Sequence[str], paths: JobPaths) -> list[str]:
        """Return the profiler's command line around `program`."""

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
        turns = [_VisitResult(visit, entry, None) for visit, entry in zip(visits, entries, strict=False)]
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
        # Keep the folder for inspection unless all is well. A place without an algorithm is normal.
        missing = [entry for entry, found in zip(entries, matched, strict=True) if found is None]
        if not died and all(entry.error is not None and is_place(entry.config) for entry in missing):
            shutil.rmtree(paths.folder, ignore_errors=True)
        return replace(run, turns=turns, note=f"{note}; {run.note}" if note else run.note)

    def _entries(self, log: str, paths: JobPaths, visits: Sequence[Visit]) -> list[LogEntry]:
        """Return the log's entries, one for each visit begun. Raises ProfilerError if they do not match the job."""
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
                # It may have launched some of its calls. They are in the trace and must not be attributed to another
                # config.
                entry = replace(entry, symbols=visit.symbols, calls=calls)
            fitted.append(entry)
        return fitted

    def _measured(self, name: str, stage: str, samples_us: tuple[float, ...]) -> Measurement:
        median_us = statistics.median(samples_us)
        return Measurement(name, Outcome.MEASURED, self.time_source, stage, median_us, samples_us)

    def _failed(self, turn: _VisitResult, run: _Run, stage: str) -> Measurement:
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
            reason = run.library.get(name) or "the vendor library is not timed: none of its turns was reached"
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
    """Runs `rocprofv3 --kernel-trace` (ROCm 6.2 and later). The program is `executable`, $ROCPROFV3, or on PATH."""

    time_source = "rocprofv3"
    _program = "rocprofv3"

    def _command(self, program: Sequence[str], paths: JobPaths) -> list[str]:
        return rocprofv3_argv(self._executable, program, paths.trace, _TRACE_NAME)


class RocprofProfiler(_LaunchProfiler):
    """Runs legacy `rocprof --stats`, for a ROCm without rocprofv3. It runs kernels one at a time and is slow."""

    time_source = "rocprof"
    _program = "rocprof"

    def _command(self, program: Sequence[str], paths: JobPaths) -> list[str]:
        return rocprof_argv(self._executable, program, os.path.join(paths.trace, f"{_TRACE_NAME}.csv"))


def _rounds(visits: Sequence[Visit]) -> int:
    return len({visit.round for visit in visits if visit.round is not None})


def _environment(session: Session) -> dict[str, str]:
    environment = profiled_environment(os.environ, session.device_index)
    environment.pop("TRITON_INTERPRET", None)
    # Only the checkout, not all of sys.path: rocprofv3 is a Python program too, possibly of another version.
    root = str(Path(genkern.__file__).parents[1])
    if root not in site.getsitepackages():
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, inherited] if inherited else [root])
    return environment


def _read_trace(paths: JobPaths, died: bool) -> tuple[KernelTrace, str]:
    """Return the profiler's trace, from CSV files or else a database, and a note about unusable rows.

    A missing file is normal for a process that launched nothing. Raises ProfilerError for a file that is not a trace,
    unless the process died and may have left it incomplete.
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
