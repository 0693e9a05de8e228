"""Problems shared out among the tuners of several devices, whose number may shrink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from genkern.errors import ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.tuning.tune import Report


class TunesProblems(Protocol):
    """A Tuner, or what stands for one in another process."""

    @property
    def device_index(self) -> int: ...

    def tune(self, problem: GemmProblem) -> Report:
        """As Tuner.tune."""


def tune_all(
    tuners: Sequence[TunesProblems],
    problems: Sequence[GemmProblem],
    finished: Callable[[Report], None],
    lost: Callable[[int, ProfilerError, int], None],
) -> None:
    """Hand the problems to whichever tuner is free, largest first; `finished` sees each report, one at a time.

    A tuner whose device is lost (ProfilerError) gives its problem to the others. `lost` is told the device's index,
    the error and how many devices are left; when there is none to take the problem, the error is raised instead.
    Any other error ends them all.
    """
    if len(tuners) == 1:
        for problem in problems:
            finished(tuners[0].tune(problem))
        return
    remaining = sorted(problems, key=lambda problem: problem.flops)
    lock = threading.Condition()
    under_way: set[GemmProblem] = set()
    losses: list[ProfilerError] = []
    fatal: list[BaseException] = []
    stopped = threading.Event()

    def work(tuner: TunesProblems) -> None:
        try:
            while tune_one(tuner):
                pass
        except BaseException as error:  # carried to the caller's thread
            fatal.append(error)
            stopped.set()
        finally:
            with lock:
                lock.notify_all()

    def tune_one(tuner: TunesProblems) -> bool:
        """Whether there was one, and the device may take another."""
        with lock:
            # What is under way comes back when its device is lost.
            lock.wait_for(lambda: remaining or not under_way or stopped.is_set())
            if not remaining or stopped.is_set():
                return False
            problem = remaining.pop()
            under_way.add(problem)
        try:
            report = tuner.tune(problem)
            with lock:
                if not stopped.is_set():
                    finished(report)
        except ProfilerError as error:
            with lock:
                remaining.append(problem)
                losses.append(error)
                if (left := len(tuners) - len(losses)) and not stopped.is_set():
                    lost(tuner.device_index, error, left)
            return False
        finally:
            with lock:
                under_way.discard(problem)
                lock.notify_all()
        return True

    threads = [threading.Thread(target=work, args=(tuner,), daemon=True) for tuner in tuners]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        # Stopped: no tuner begins another problem, and the caller's files are its own again.
        with lock:
            stopped.set()
            lock.notify_all()
        raise
    if fatal:
        raise fatal[0]
    if remaining and losses:
        raise losses[-1]
