"""DriverProcess: a tuner in a process of its own, so that the devices of a run do not share one interpreter.

Tuning a size takes over a second of Python: the module, cache keys, the strategy, records of all candidates. For
4096x4096x4096 and 16x6144x4096 on sm_90 with all kernels cached it was 2.5 s of processor time together (Intel Xeon,
Triton 3.7.1, Python 3.11, no GPU), while a GPU takes about 2 s for a size. Threads of one process would therefore wait
for each other: both sizes at a time took 19.6 s with threads and 17.3 s with processes (two cores at a load of 20,
median of three runs in turns). A forked process tunes whole sizes. The parent keeps what all devices share: the
journal, the results, the terminal and the compile farm. The process ends when its parent ends, even by a crash, because
the pipe between them closes then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from genkern.compile.cache import Failure
from genkern.compile.farm import Farm, FarmCounts
from genkern.errors import BugError, GenkernError, MachineError, ProfilerError, machine_fault
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.journal.copy import JournalCopy
from genkern.journal.journal import Journal
from genkern.tuning.processes.asking_farm import AskingFarm, NoFarmError
from genkern.tuning.progress import Progress
from genkern.tuning.tune import Report, Tuner

# Seconds between two reports of progress to the parent.
_BATCH_S = 0.05
# Seconds that a driver process has to end its measured process, once it is told to end.
_END_S = 15.0
_SIGNAL_S = 0.05

Condensed = Callable[[Report], Report]


@dataclass
class Shared:
    """Objects in the parent that all driver processes of a run use.

    `news` are lines of the journal for the processes, in order: winners, and the facts of sizes that were begun by a
    process that is lost. Each process gets the lines that it has not got yet with its next task.
    """

    farm: Farm
    journal: Journal
    progress: Progress
    news: list[bytes] = field(default_factory=list)


class DriverProcess:
    """The parent's side: has the methods of a Tuner. `tune` also raises ProfilerError if the process is lost."""

    def __init__(
        self,
        tuner: Tuner,
        closing: contextlib.ExitStack,
        shared: Shared,
        condensed: Condensed,
        inherited: Sequence[Connection] = (),
    ) -> None:
        """Fork the process.

        closing: ends the measured process; called in the forked process, or here if that is lost
        condensed: removes from a report what the parent does not need
        inherited: the parent's ends of the pipes to other driver processes
        """
        self.device_index = tuner.device_index
        self._shared = shared
        self._closing = closing
        self.pipe, theirs = get_context("fork").Pipe()
        self._sending = threading.Lock()
        self._told = 0
        self._wanted = 0
        # Numbers that the process gives to the owners of its orders, one per size that it tunes or prepares; `_behind`
        # are the owners whose compiles wait until no size in its turn needs the workers.
        self._owners: set[int] = set()
        self._behind: set[int] = set()
        self._at_rest = threading.Event()
        self._at_rest.set()
        arguments = tuner, closing, theirs, condensed, (*inherited, self.pipe)
        self._process = get_context("fork").Process(target=_child, args=arguments)
        self._process.start()
        theirs.close()

    def tune(self, problem: GemmProblem, may_prepare: Callable[[], object] = lambda: None) -> Report:
        """Have the process tune `problem`; meanwhile serve its requests to the journal, the farm and the terminal."""
        shared = self._shared
        lines: list[bytes] = []
        shown = 0
        self._at_rest.clear()
        try:
            with contextlib.ExitStack() as bar:
                advance: Callable[[int], None] | None = None
                self._say("tune", problem)
                while True:
                    kind, *values = self._receive()
                    if kind == "facts":
                        data, decides = values
                        shared.journal.take_over(data, decides=decides)
                        (shared.news if decides else lines).append(data)
                    elif kind == "may_prepare":
                        may_prepare()
                    elif kind in ("order", "stand", "drop"):
                        self._to_farm(kind, *values)
                    elif kind == "claim":
                        shared.farm.claim(values[0])
                    elif kind == "progress":
                        name, total, done, wanted = values
                        self._count(wanted)
                        if advance is None:
                            advance = bar.enter_context(shared.progress.problem(name, total, shared.farm.counts))
                        advance(done - shown)
                        shown = done
                    elif kind == "report":
                        report: Report = values[0]
                        return report
                    else:
                        raise values[0]
        except ProfilerError:
            # The process that takes over the size gets its facts, and continues from them.
            shared.news.extend(lines)
            for owner in list(self._owners):
                self._to_farm("drop", owner, None)
            raise
        finally:
            self._at_rest.set()

    def prepare(self, problem: GemmProblem) -> None:
        """Have the process prepare its next problem. Its orders reach the farm while `tune` of another problem runs."""
        self._say("prepare", problem)

    def forget(self, problem: GemmProblem) -> None:
        """Give up preparing `problem`, which another tuner took over, and drop its orders."""
        for owner in list(self._behind):
            self._shared.farm.drop((self, owner))
        self._say("forget", problem)

    def end(self) -> None:
        """Tell the process to end, with its measured process. Works while another thread waits in `tune`."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.pipe.fileno())) as end:
            end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the process, and wait until `tune` has written its last facts to the journal.

        A process that does not end in time is killed.
        """
        self.end()
        self._process.join(_END_S + 1.0)
        self._process.kill()
        self._process.join()
        self._at_rest.wait(_END_S)

    def _to_farm(self, kind: str, owner: int, *values: Any) -> None:
        """Pass a request of one of the process's sizes to the farm."""
        who, farm = (self, owner), self._shared.farm
        self._owners.add(owner)
        if kind == "order":
            farm.order(who, values[0], functools.partial(self._compiled, owner))
        elif kind == "stand":
            farm.set_background(who, background=values[0])
            (self._behind.add if values[0] else self._behind.discard)(owner)
        else:
            farm.drop(who, values[0])
            if values[0] is None:
                self._owners.discard(owner)
                self._behind.discard(owner)

    def _compiled(self, owner: int, key: str, result: Binary | Failure | Exception) -> None:
        """Send the process the result of a compile job that it ordered."""
        with contextlib.suppress(OSError):
            self._send("compiled", owner, key, _portable(result) if isinstance(result, Exception) else result)

    def _count(self, wanted: int) -> None:
        """Add to the farm's counts the binaries that the process has requested since its last report of progress."""
        self._shared.farm.count(wanted=wanted - self._wanted)
        self._wanted = wanted

    def _say(self, what: str, problem: GemmProblem) -> None:
        """Send the process a task (tune, prepare or forget), with the news since the last task."""
        # If the process has ended, `_receive` raises the error.
        with self._sending, contextlib.suppress(OSError):
            news = self._shared.news[self._told :]
            self._told += len(news)
            self.pipe.send((what, problem, news, self._shared.farm.jobs))

    def _send(self, *message: Any) -> None:
        with self._sending:
            self.pipe.send(message)

    def _receive(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join(_END_S)
            # The forked process can no longer end its measured process.
            self._closing.close()
            code = self._process.exitcode
            how = f"exit code {code}" if code is None or code >= 0 else f"killed by {signal.Signals(-code).name}"
            raise ProfilerError(f"the driver process of GPU {self.device_index} is lost ({how})") from None


@contextlib.contextmanager
def driver_processes(
    tuners: Sequence[Tuner], closings: Sequence[contextlib.ExitStack], shared: Shared, condensed: Condensed
) -> Iterator[list[DriverProcess]]:
    """Context with a process for each tuner; they end with it. Call this before any thread starts."""
    with contextlib.ExitStack() as stack:
        drivers: list[DriverProcess] = []
        for tuner, closing in zip(tuners, closings, strict=True):
            drivers.append(DriverProcess(tuner, closing, shared, condensed, [driver.pipe for driver in drivers]))
            stack.callback(drivers[-1].close)
        try:
            yield drivers
        finally:
            for driver in drivers:
                driver.end()


def _portable(error: Exception) -> Exception:
    """Return an exception that can be pickled: an unexpected one becomes a MachineError or a BugError."""
    if isinstance(error, ProfilerError):
        return ProfilerError(str(error))
    if isinstance(error, GenkernError | BugError):
        return error
    if why := machine_fault(error):
        return MachineError(f"{why}: check the limits of memory, processes and files (ulimit), and free space")
    return BugError.of(error)


class _Stopped(BaseException):
    """The parent has ended, or has told this process to end."""


def _child(
    tuner: Tuner,
    closing: contextlib.ExitStack,
    pipe: Connection,
    condensed: Condensed,
    inherited: Sequence[Connection],
) -> None:
    # A pipe would stay open as long as this process held the parent's end of it.
    for other in inherited:
        other.close()
    # A terminal or a batch system signals the whole process group; only the parent reacts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _stop)
    driver = _Driver(tuner, pipe)
    try:
        driver.serve(condensed)
    except _Stopped:
        driver.stop()
        closing.close()
        os._exit(0)
    except BaseException:  # must not reach the code that the fork copied
        traceback.print_exc()
    finally:
        os._exit(1)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise _Stopped


class _Driver:
    """The forked side: the main thread tunes; other threads read messages, send messages, and report progress."""

    def __init__(self, tuner: Tuner, pipe: Connection) -> None:
        self._pipe = pipe
        # A thread of its own sends the messages: a signal stops the main thread, which must not be within a message.
        self._to_send: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._asked: queue.SimpleQueue[GemmProblem] = queue.SimpleQueue()
        self._journal = JournalCopy(tuner.journal, self._send_facts)
        self._flushing = threading.Lock()
        self._counted = _Counted()
        self._said: tuple[Any, ...] = ()
        self._farm = AskingFarm(tuner.build_environment.farm, self._send)
        tuner.build_environment.farm = self._farm
        self._tuner = replace(tuner, journal=self._journal, progress=self._counted)

    def serve(self, condensed: Condensed) -> None:
        self._sender.start()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._send_batches, daemon=True).start()
        self._tuner.profiler.start()
        while True:
            problem = self._asked.get()
            try:
                report = self._tuner.tune(problem, lambda: self._send("may_prepare"))
                answer: tuple[Any, ...] = "report", condensed(report)
            except NoFarmError:
                continue  # and wait for the signal
            except Exception as error:
                answer = "error", _portable(error)
            self.flush(ended=True)
            self._send(*answer)

    def stop(self) -> None:
        """Send the facts so far, and end the thread that sends."""
        self.flush()
        self._to_send.put(None)
        self._sender.join(_END_S / 3)

    def _read(self) -> None:
        try:
            while True:
                kind, *values = self._pipe.recv()
                if kind == "compiled":
                    self._farm.receive(*values)
                    continue
                problem, news, jobs = values
                self._farm.has_jobs(jobs)
                self._journal.read_lines(news)
                if kind == "tune":
                    self._asked.put(problem)
                elif kind == "prepare":
                    self._tuner.prepare(problem)
                else:
                    self._tuner.forget(problem)
        except (EOFError, OSError):
            # Threads that wait for a compile must return, since closing a builder waits for them.
            self._farm.lose()
            # Sent repeatedly: a signal just before the main thread goes to sleep does not wake it.
            for _ in range(int(_END_S / _SIGNAL_S)):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                time.sleep(_SIGNAL_S)
            os._exit(1)
        except BaseException:  # without this thread the process could not be told to end
            traceback.print_exc()
            os._exit(1)

    def _send_batches(self) -> None:
        pause = threading.Event()
        while not pause.wait(_BATCH_S):
            self._send_progress()

    def flush(self, *, ended: bool = False) -> None:
        """Send new facts and progress; with `ended`, the last ones of this size."""
        self._journal.flush()
        self._send_progress(ended=ended)

    def _send_progress(self, *, ended: bool = False) -> None:
        with self._flushing:
            counted = self._counted
            state = counted.name, counted.total, counted.done, self._farm.counts.wanted
            if counted.name and state != self._said:
                self._said = state
                self._send("progress", *state)
            if ended:
                counted.name = ""

    def _send_facts(self, data: bytes, decides: bool) -> None:
        self._send("facts", data, decides)

    def _send(self, *message: Any) -> None:
        self._to_send.put(message)

    def _send_all(self) -> None:
        # If the parent has ended, this process is about to end too.
        with contextlib.suppress(OSError):
            while (message := self._to_send.get()) is not None:
                self._pipe.send(message)


class _Counted(Progress):
    """Counts the progress of the current size; the parent shows it."""

    def __init__(self) -> None:
        self.name = ""
        self.total = 0
        self.done = 0

    @contextlib.contextmanager
    def problem(self, name: str, candidates: int, counts: FarmCounts) -> Iterator[Callable[[int], None]]:
        self.name, self.total, self.done = name, candidates, 0
        yield self._advance

    def _advance(self, count: int) -> None:
        self.done += count
