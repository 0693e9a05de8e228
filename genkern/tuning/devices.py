"""Distribution of problems over the tuners of several devices, which may be lost during the run."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from genkern.errors import ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.tuning.tune import Report

# Number of sizes that are prepared while a device measures another size. In a simulation with 16 workers (compiles of
# 0.2 to 0.5 s, finals of 0.9 s; only pruning and the search were real) a size took 4.0 s without preparation, 3.2 s
# with one size ahead, and 3.2 s with two.
SIZES_AHEAD = 1


class ProblemTuner(Protocol):
    """A Tuner, or a proxy for a Tuner in another process. Any thread may call `prepare` and `forget`."""

    @property
    def device_index(self) -> int: ...

    def tune(self, problem: GemmProblem, may_prepare: Callable[[], object]) -> Report:
        """See Tuner.tune."""

    def prepare(self, problem: GemmProblem) -> None:
        """See Tuner.prepare."""

    def forget(self, problem: GemmProblem) -> None:
        """See Tuner.forget."""


def tune_all(
    tuners: Sequence[ProblemTuner],
    problems: Sequence[GemmProblem],
    finished: Callable[[Report], None],
    lost: Callable[[int, ProfilerError, int], None],
) -> None:
    """Give each tuner the next problem when it is free: the largest one left, or for a single device the first one.

    finished: called with each report, by one thread at a time
    lost: called with the index of a lost device, its error, and the number of devices that are left

    A tuner prepares its next problem while it tunes another. A tuner without work takes over a problem that another
    tuner prepares. If a tuner raises ProfilerError, its problems go to the other tuners; a device counts as lost when
    its last tuner is lost. Raises the last ProfilerError if problems are left and no tuner is. Any other error ends the
    other tuners after their current problems, and is raised. With a single tuner every error is raised at once.
    """
    if len(tuners) > 1:
        _DeviceScheduler(tuners, problems, finished, lost).work()
        return
    left, ahead = deque(problems), deque[GemmProblem]()

    def prepare_next() -> None:
        for problem in list(left)[len(ahead) : SIZES_AHEAD]:
            ahead.append(problem)
            tuners[0].prepare(problem)

    while left:
        problem = left.popleft()
        if ahead:
            ahead.popleft()
        finished(tuners[0].tune(problem, prepare_next))


class _DeviceScheduler:
    """Tuners in threads that share a list of problems."""

    def __init__(
        self,
        tuners: Sequence[ProblemTuner],
        problems: Sequence[GemmProblem],
        finished: Callable[[Report], None],
        lost: Callable[[int, ProfilerError, int], None],
    ) -> None:
        self._tuners = tuners
        self._finished = finished
        self._lost = lost
        # Problems are popped from the end. With several devices the largest problems come first, so that the devices
        # finish at about the same time.
        order = {problem: -place for place, problem in enumerate(problems)}
        is_one = len({tuner.device_index for tuner in tuners}) == 1
        self._key: Callable[[GemmProblem], float] = order.__getitem__ if is_one else _size
        self._left = sorted(problems, key=self._key)
        # The problems that each tuner prepares, by the tuner's index.
        self._ahead: list[list[GemmProblem]] = [[] for _ in tuners]
        # Held while the state below changes, and during the callbacks.
        self._changed = threading.Condition()
        self._in_flight: set[GemmProblem] = set()
        self._losses: list[ProfilerError] = []
        self._gone: set[int] = set()
        self._fatal: list[BaseException] = []
        self._is_stopped = False

    def work(self) -> None:
        # Each tuner gets one problem before any tuner prepares a second one.
        for ahead in self._ahead[: len(self._left)]:
            ahead.append(self._left.pop())
        places = range(len(self._tuners))
        threads = [threading.Thread(target=self._work, args=(place,), daemon=True) for place in places]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            # Interrupted: no tuner begins another problem, and no callback touches the caller's files any more.
            self._stop()
            raise
        if self._fatal:
            raise self._fatal[0]
        if self._left and self._losses:
            raise self._losses[-1]

    def _work(self, place: int) -> None:
        try:
            while (problem := self._next(place)) is not None and self._tune(place, problem):
                pass
        except BaseException as error:  # carried to the caller's thread
            self._fatal.append(error)
            self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _next(self, place: int) -> GemmProblem | None:
        """Wait for a tuner's next problem; None if none is left or can come back from a lost tuner, or if stopped."""
        with self._changed:
            # A problem that is being tuned comes back if its device is lost.
            self._changed.wait_for(lambda: self._left or any(self._ahead) or not self._in_flight or self._is_stopped)
            if self._is_stopped:
                return None
            if self._ahead[place]:
                problem = self._ahead[place].pop(0)
            elif self._left:
                problem = self._left.pop()
            elif any(self._ahead):
                problem = self._taken_over()
            else:
                return None
            self._in_flight.add(problem)
            return problem

    def _taken_over(self) -> GemmProblem:
        """Take over a problem that another tuner prepares: the largest, or for a single device the first one."""
        place = max(
            (place for place, ahead in enumerate(self._ahead) if ahead), key=lambda p: self._key(self._ahead[p][-1])
        )
        problem = self._ahead[place].pop()
        self._tuners[place].forget(problem)
        return problem

    def _prepare(self, place: int) -> None:
        """Let a tuner prepare its next problem, if one is left."""
        with self._changed:
            while self._left and len(self._ahead[place]) < SIZES_AHEAD and not self._is_stopped:
                self._ahead[place].append(problem := self._left.pop())
                self._tuners[place].prepare(problem)

    def _tune(self, place: int, problem: GemmProblem) -> bool:
        """Tune a problem. False if the device was lost."""
        tuner = self._tuners[place]
        try:
            report = tuner.tune(problem, functools.partial(self._prepare, place))
            with self._changed:
                if not self._is_stopped:
                    self._finished(report)
        except ProfilerError as error:
            with self._changed:
                ahead, self._ahead[place] = self._ahead[place], []
                for prepared in ahead:
                    tuner.forget(prepared)
                self._left = sorted([*self._left, problem, *ahead], key=self._key)
                self._losses.append(error)
                self._gone.add(place)
                left = {each.device_index for at, each in enumerate(self._tuners) if at not in self._gone}
                # A device is lost only when none of its tuners is left.
                if left and tuner.device_index not in left and not self._is_stopped:
                    self._lost(tuner.device_index, error, len(left))
            return False
        finally:
            with self._changed:
                self._in_flight.discard(problem)
                self._changed.notify_all()
        return True


def _size(problem: GemmProblem) -> float:
    return problem.flops
