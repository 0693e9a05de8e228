"""SupervisedProfiler: times and checks candidates in one long-lived supervised process, with a timer of cuda/timers.py.

A config that hangs, faults or ends the process loses only its own measurement and costs a restart, at every stage; the
other requests in flight are sent again. In screening, the culprit is the first candidate without an answer. In the
finals, it is the name last reported as running, if it also fails alone or ends a second process.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from genkern.errors import ProfilerError
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Measurement, Outcome
from genkern.profiling.candidate_feed import CandidateFeed
from genkern.profiling.early_process import HARNESS, EarlyProcess
from genkern.profiling.measured_process import (
    REFERENCE_S,
    Fault,
    MeasuredProcess,
    SessionRefused,
    check_of_answer,
    environment_of,
    loss,
    measured_of,
    samples_of,
    screen_request,
    screened_of_answer,
    took_ms,
)
from genkern.profiling.rehearsal import Rehearsal
from genkern.profiling.supervisor import ChildDied, ChildGarbled, SupervisorError
from genkern.timing.device_lock import DeviceLock, holds_device
from genkern.timing.libraries import ONE_BY_ONE, OURS, TORCH, library_of
from genkern.timing.profiler import Racer, vendor_of, visible_variable
from genkern.timing.session import Session

Answered = TypeVar("Answered")
# Another request is sent while fewer candidates than this are in flight, so that the measured process need not wait for
# this process.
_WINDOW = 16
# After this many losses in a row, the vendor library's call must succeed to show that the device is not at fault.
_LOSSES_IN_A_ROW = 5
_ROUNDS_ALONE = 3
# A finalist that does not end the process alone is removed when it has ended the finals this many times. Also the
# number of attempts at a semi-final.
_CHANCES = 2


class SupervisedProfiler:
    """Profiler for one device, used for problem after problem. `time_source`: name of a timer in cuda/timers.py.

    The environment variable of the GPU vendor makes only this device visible to the measured process. Methods raise
    ProfilerError if the device itself cannot be used any more.
    """

    def __init__(
        self,
        time_source: str,
        device_index: int,
        cache_dir: str,
        log_dir: str,
        *,
        harness: Sequence[str] = HARNESS,
        device_lock: DeviceLock | None = None,
        early: EarlyProcess | None = None,
        rehearses: bool = False,
    ) -> None:
        """Prepare the profiler; `start` or the first request starts the process.

        time_source: name of a timer
        device_index: number of the GPU
        cache_dir: folder of cache entries
        log_dir: folder for the logs of measured processes
        harness: command line of the measured process
        turn: lock that is held during every use of the device, if other processes use it too
        early: the process that has been started early, if there is one
        rehearses: run the check and the library calls of the first size once while waiting for binaries; only if no
            other process uses the device
        """
        self.time_source = time_source
        self.device_lock = device_lock or DeviceLock()
        # Libraries whose algorithms race one by one, in addition to PyTorch's own call.
        self._one_by_one = ONE_BY_ONE[vendor_of(time_source)]
        self._device_index = device_index
        environment = environment_of(visible_variable(time_source), device_index, cache_dir)
        log_stem = str(Path(log_dir) / f"harness_{device_index}") + f"_{self.device_lock.number}" * (
            self.device_lock.number > 0
        )
        self._process = MeasuredProcess([*harness, "--serve", time_source], environment, log_stem, device_index, early)
        self._losses = 0
        self._rehearsal = Rehearsal(self._process, self._one_by_one) if rehearses and device_lock is None else None
        # The session screened last and its best time, which a new process does not know.
        self._screening: Session | None = None
        self._best_us: float | None = None

    @property
    def device(self) -> str:
        """The device's name, once a session has been open."""
        return self._process.device

    @property
    def torch_version(self) -> str:
        return self._process.torch_version

    def start(self) -> None:
        """Start the measured process. Importing PyTorch and creating a context take seconds."""
        self._process.start(on_device=self.device_lock.number == 0)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager during which no other process of this run uses the device."""
        return self.device_lock.hold()

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        """Yield one Measurement per candidate, in the order in which they arrive.

        A fault affects its candidate only.
        """
        # Before the process is open, which takes seconds: the compile farm works meanwhile.
        feed = CandidateFeed(units)
        try:
            try:
                self._process.wait_up()
                with self.device_lock.hold():
                    self._process.open(session)
            except SessionRefused as error:
                while (candidates := feed.next(wait=True)) is not None:
                    for candidate in candidates:
                        name, message = candidate.config.name, str(error)
                        yield Measurement(name, Outcome.LAUNCH_FAILED, self.time_source, message=message)
                return
            with contextlib.ExitStack() as turn:
                yield from self._screen(session, feed, turn)
        finally:
            feed.close()

    def _screen(self, session: Session, feed: CandidateFeed, turn: contextlib.ExitStack) -> Iterator[Measurement]:
        """Screen; `turn` holds the device lock while requests are in flight."""
        # Candidates without an answer, grouped by request.
        under_way: deque[list[Candidate]] = deque()
        if self._screening != session:
            self._screening, self._best_us = session, session.best_us
        while True:
            while sum(map(len, under_way)) < _WINDOW:
                if (more := feed.next(wait=False)) is None and not under_way:
                    if self._rehearsal and self._rehearsal.has_gone_on(session):
                        continue
                    # Other processes may measure while this one waits for binaries.
                    turn.close()
                    more = feed.next(wait=True)
                if more is None:
                    break
                if not under_way:
                    turn.enter_context(self.device_lock.hold())
                sent = self._process.send(screen_request(more, self._best_us))
                if not sent and not under_way:
                    # The process died while it was idle: this candidate is not the cause.
                    self._process.lost()
                    self._process.open(session)
                    self._process.send(screen_request(more, self._best_us))
                under_way.append(list(more))
            if not under_way:
                return
            name = under_way[0].pop(0).config.name
            if not under_way[0]:
                under_way.popleft()
            try:
                answer = self._process.receive(session.budget.timeout_s)
                measurement = replace(screened_of_answer(name, answer, self.time_source), took_ms=took_ms(answer))
                self._losses = 0
            except SupervisorError as error:
                outcome, message = loss(error)
                yield Measurement(name, outcome, self.time_source, message=message)
                self._count_loss(session)
                self._process.open(session)
                for candidates in under_way:
                    self._process.send(screen_request(candidates, self._best_us))
            else:
                if measurement.duration_us is not None:
                    self._best_us = min(self._best_us or measurement.duration_us, measurement.duration_us)
                yield measurement

    def retime(self, session: Session, finalists: Sequence[Racer]) -> list[Measurement]:
        """Time the finalists and the vendor library in rounds until the winner is clear.

        PyTorch's own call of the library is named VENDOR. The best algorithms of cuBLASLt, or of hipBLASLt and AITER,
        have their own names. They are missing if the library does not support the problem.

        If one racer ends the process, all others are timed again without it, so that their times are comparable. A
        library algorithm that ends the process removes all algorithms of that library.
        """
        return self._raced(session, finalists, {TORCH, *filter(session.budget.may_win, self._one_by_one)})

    def confirm(self, session: Session, finalists: Sequence[Racer], calls: Sequence[str]) -> list[Measurement]:
        """Time these finalists and library calls in separate rounds. Faults are handled as in `retime`."""
        algorithms = [name for name in calls if library_of(name) in self._one_by_one]
        return self._raced(session, finalists, {library_of(name) for name in calls}, algorithms)

    @holds_device
    def _raced(
        self,
        session: Session,
        finalists: Sequence[Racer],
        libraries: set[str],
        algorithms: Sequence[str] | None = None,
    ) -> list[Measurement]:
        """Run the finals, or a confirmation with the given library `algorithms` if they are not None."""
        left = {candidate.name: candidate for candidate in finalists}
        lost: list[Measurement] = []
        chances = Counter(dict.fromkeys(("", TORCH, *self._one_by_one, *left), _CHANCES))
        # Without finalists the libraries race only if the caller gave no finalists.
        while left or (libraries and not finalists):
            try:
                rounds = session.budget.min_rounds, session.budget.final_rounds
                return [*self._finals(session, list(left.values()), libraries, rounds, algorithms), *lost]
            except SessionRefused as error:
                return [self._final_failure(name, Outcome.LAUNCH_FAILED, str(error)) for name in left] + lost
            except Fault as fault:
                self._count_loss(session)
                library = library_of(fault.suspect)
                name = fault.suspect if library in OURS else library
                chances[name] -= 1
                if chances[name] > 0 and not self._faults_alone(session, left.get(name), libraries & {name}):
                    continue
                if name in libraries:
                    libraries.remove(name)
                elif name in left:
                    del left[name]
                    lost.append(self._final_failure(name, fault.outcome, fault.message))
                else:
                    raise ProfilerError(f"GPU {self._device_index}: re-timing fails: {fault.message}") from None
        return lost

    @holds_device
    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        """Return the names of the `most` fastest candidates under load, without those that end the process.

        If no attempt gives a result, returns the first `most` of the remaining candidates.
        """
        left = {candidate.config.name: candidate for candidate in candidates}
        fastest: list[str] = []
        for _ in range(_CHANCES):
            suspect = ""
            try:
                self._process.open(session)
                names = [candidate.request for candidate in left.values()]
                self._process.send({"command": "semifinal", "candidates": names, "most": most})
                while "running" in (answer := self._process.receive(session.budget.timeout_s)):
                    suspect = str(answer["running"])
                fastest = [name for name in answer["fastest"] if name in left]
                self._losses = 0
                break
            except SessionRefused:
                break
            except (SupervisorError, KeyError, TypeError):
                left.pop(suspect, None)
                self._count_loss(session)
        return fastest or list(left)[:most]

    def check(self, session: Session, candidate: Candidate) -> Check:
        """Check the candidate's binaries on the device (profiling/checking).

        The method of the result is NOT_CHECKED if the process dies twice, hangs, sends no valid answer, runs out of
        memory, or cannot open the session: none of these shows that the output is wrong.
        """
        return self.check_request(session, candidate.name, candidate.request)

    def check_call(self, session: Session, name: str) -> Check:
        """Check the library call that had this name in the finals."""
        return self.check_request(session, name, {"config": name, "binaries": []})

    def check_request(self, session: Session, name: str, request: dict[str, Any]) -> Check:
        """Send a check request to the measured process. Its "command" is "check" unless `request` has another."""
        size = session.problem.size
        lost = partial(Check, name, False, 1.0, math.inf, size, NOT_CHECKED)
        return self.request(session, {"command": "check", **request}, partial(check_of_answer, name, size, "gpu"), lost)

    @holds_device
    def request(
        self,
        session: Session,
        request: dict[str, Any],
        read: Callable[[dict[str, Any]], Answered],
        lost: Callable[[str, Outcome], Answered],
    ) -> Answered:
        """Send `request` and return `read(answer)`, or `lost(message, outcome)` if there is no answer."""
        outcome, message = Outcome.LAUNCH_FAILED, ""
        # If the process dies, a second attempt, since something other than this request may have ended the first.
        for _ in range(2):
            try:
                self._process.open(session)
                self._process.send(request)
                answer = self._process.receive(session.budget.timeout_s + REFERENCE_S)
                self._losses = 0
                return read(answer)
            except SessionRefused as error:
                message = str(error)
                break
            except SupervisorError as error:
                outcome, message = loss(error)
                self._count_loss(session)
                if not isinstance(error, ChildDied):
                    break
        return lost(message, outcome)

    def close(self) -> None:
        self._process.close()

    def _finals(
        self,
        session: Session,
        candidates: Sequence[Racer],
        libraries: Collection[str],
        rounds: tuple[int, int],
        algorithms: Sequence[str] | None = None,
    ) -> list[Measurement]:
        """Run finals among these candidates and library calls. Raises Fault if the process is lost."""
        self._process.open(session)
        request = {
            "command": "retime",
            "candidates": [candidate.request for candidate in candidates],
            "min_rounds": min(rounds),
            "max_rounds": rounds[1],
            "vendor": TORCH in libraries,
            "lt": [each for each in self._one_by_one if each in libraries and algorithms is None],
            "algorithms": [name for name in algorithms or () if library_of(name) in libraries],
            "confirm": algorithms is not None,
            # With a flush before each launch, launches are not captured in a graph.
            "compared": algorithms is not None and not session.budget.icache_flush,
            "seed": session.seed,
        }
        suspect = ""
        try:
            self._process.send(request)
            while "running" in (answer := self._process.receive(session.budget.timeout_s)):
                suspect = str(answer["running"])
            finals = self._finals_of(answer)
        except SupervisorError as error:
            raise Fault(suspect, error) from None
        self._losses = 0
        return finals

    def _finals_of(self, answer: dict[str, Any]) -> list[Measurement]:
        try:
            errors = {str(name): str(message) for name, message in answer["errors"].items()}
            wrong = {str(name): str(message) for name, message in answer.get("wrong", {}).items()}
            discarded = {str(name): int(count) for name, count in answer["discarded"].items()}
            all_samples = dict(answer["samples_us"])
            usual_mhz, watts = (
                None if answer.get(name) is None else float(answer[name]) for name in ("usual_mhz", "watts")
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ChildGarbled(f"the measured process sent a malformed answer: {error!r}") from None
        finals = []
        for name, values in all_samples.items():
            if name in wrong:
                finals.append(self._final_failure(name, Outcome.WRONG, wrong[name]))
                continue
            try:
                samples = samples_of(values)
            except (TypeError, ValueError) as error:
                errors[name] = str(error)
                continue
            measured = measured_of(name, "final", samples, self.time_source)
            finals.append(replace(measured, discarded=discarded.get(name, 0), usual_mhz=usual_mhz, watts=watts))
        refused = ((name, message) for name, message in errors.items() if library_of(name) in OURS)
        return finals + [self._final_failure(name, Outcome.LAUNCH_FAILED, message) for name, message in refused]

    def _faults_alone(self, session: Session, candidate: Racer | None, library: Collection[str]) -> bool:
        """Return True if this candidate, or this one library, ends the process when it runs alone."""
        try:
            self._finals(session, [candidate] if candidate else [], library, (_ROUNDS_ALONE, _ROUNDS_ALONE))
        except Fault:
            self._count_loss(session)
            return True
        return False

    def _count_loss(self, session: Session) -> None:
        """End the process. After several losses in a row without a result, test whether the device still works.

        Raises ProfilerError if it does not.
        """
        self._process.lost()
        self._losses += 1
        if self._losses < _LOSSES_IN_A_ROW:
            return
        losses = self._losses
        try:
            self._finals(session, [], {TORCH}, (1, 1))
        except Fault as fault:
            self._process.close()
            raise ProfilerError(
                f"GPU {self._device_index} is broken: {losses} measured processes in a row were lost, and the vendor "
                f"library's own call fails too: {fault.message}; try another --gpu_ids"
            ) from None

    def _final_failure(self, name: str, outcome: Outcome, message: str) -> Measurement:
        return Measurement(name, outcome, self.time_source, "final", message=message)
