"""MeasuredProcess: starts the process that measures on one device, and replaces it after a crash.

This module also builds its requests and parses its answers.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genkern.errors import BugError, ProfilerError
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Measurement, Outcome
from genkern.profiling.early_process import EarlyProcess
from genkern.profiling.supervisor import (
    ChildDied,
    ChildGarbled,
    ChildTimedOut,
    StreamChild,
    SupervisorError,
)
from genkern.python_child import child_environment
from genkern.timing.session import Session

# Limit for importing PyTorch, creating the context and filling the operands.
_OPEN_TIMEOUT_S = 180.0
# Additional time for a check, which computes the reference product once per problem, in float32.
REFERENCE_S = 60.0
# Number of attempts to open a session. If the process dies before its session is open, no candidate is the cause.
_OPEN_ATTEMPTS = 3
_TAIL_LINES = 3
_MESSAGE_CHARACTERS = 300
# Keys of a screening answer that replace times, with the outcome that each stands for.
_WITHOUT_TIMES = {"error": Outcome.LAUNCH_FAILED, "wrong": Outcome.WRONG, "left_out": Outcome.PREDICTED_OUT}


class SessionRefused(ProfilerError):
    """The device works, but this problem cannot be set up on it, for example because its operands do not fit."""


class Fault(Exception):
    """The process was lost in the finals while `suspect` was running; "" if no racer was running yet."""

    def __init__(self, suspect: str, error: SupervisorError) -> None:
        super().__init__(str(error))
        self.suspect = suspect
        self.outcome, self.message = loss(error)


class MeasuredProcess:
    """One process at a time with one session open in it. `argv` is the program that serves.

    A second process starts as soon as the first is open and waits in reserve. It imports PyTorch, which is most of a
    start, and does not touch the device. A start without a reserve took 5.2 to 5.6 s on a host whose cores were all
    compiling.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log_stem: str,
        device_index: int,
        early: EarlyProcess | None = None,
    ) -> None:
        """Prepare the process.

        The standard error of successive processes goes alternately to `log_stem`_0.log and `log_stem`_1.log. The first
        process is the `early` one, if there is one.
        """
        self.device = ""
        self.torch_version = ""
        self._argv = list(argv)
        self._environment = dict(environment)
        self._log_stem = log_stem
        self._device_index = device_index
        self._early = early or EarlyProcess()
        self._started = 0
        self._child: StreamChild | None = None
        self._reserve: StreamChild | None = None
        self._session: Session | None = None
        # True until the process has answered the "start" request.
        self._is_starting = False

    def start(self, *, on_device: bool = True) -> None:
        """Start a process unless one runs.

        It sets up its device if `on_device`, which is False if other processes may use the device.

        Errors are raised by `open`, not here.
        """
        if self._child is None:
            with contextlib.suppress(SupervisorError):
                self._child = self._start()
                self._child.send({"command": "start", "on_device": on_device})
                self._is_starting = True

    def wait_up(self) -> None:
        """Wait until the process that `start` started is ready. Errors are raised by `open`, not here."""
        if self._is_starting and self._child is not None:
            with contextlib.suppress(SupervisorError):
                self._child.receive(_OPEN_TIMEOUT_S)
                self._is_starting = False

    def open(self, session: Session) -> None:
        """Open `session` in a live process, unless it is open already.

        Raises SessionRefused if this problem cannot be set up, ProfilerError if no process can be used.
        """
        if self._child is not None and self._session == session:
            return
        self._session = None
        answer = self._opened({"command": "open", "session": session.to_json()})
        if "error" in answer:
            raise SessionRefused(f"GPU {self._device_index} cannot hold {session.problem.size}: {answer['error']}")
        self.device, self.torch_version = str(answer.get("device", "")), str(answer.get("torch", ""))
        self._session = session

    def send(self, request: dict[str, Any]) -> bool:
        """Send a request.

        Returns False if the process is dead; a process that no longer reads is noticed by `receive`.
        """
        try:
            with contextlib.suppress(ChildTimedOut):
                self._live().send(request)
        except ChildDied:
            return False
        return True

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer.

        Raises ChildTimedOut, ChildDied, ChildGarbled for anything that is not an object, and BugError for an answer
        that reports a bug. BugError ends the process and all requests in flight.
        """
        answer = self._live().receive(timeout_s)
        if not isinstance(answer, dict):
            raise ChildGarbled(f"the measured process answered {str(answer)[:100]!r}, which is not an object")
        if "bug" in answer:
            self.lost()
            raise BugError(str(answer["bug"]), str(answer.get("details", "")))
        return answer

    def lost(self) -> None:
        """End the process, which died, hangs or sends malformed answers. `open` then starts another."""
        self._end()

    def close(self) -> None:
        """End the process and its reserve."""
        self._end()
        if self._reserve is not None:
            self._reserve.kill()
        self._reserve = None
        self._early.close()

    def _opened(self, request: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            if self._child is None:
                self._child, self._reserve = self._reserve or self._start(), None
            try:
                if self._is_starting:
                    self.receive(_OPEN_TIMEOUT_S)
                    self._is_starting = False
                self._child.send(request)
                answer = self.receive(_OPEN_TIMEOUT_S)
                if self._reserve is None:
                    # Not sooner: both would compete for the CPU with the work for the first size.
                    with contextlib.suppress(SupervisorError):
                        self._reserve = self._start()
                return answer
            except SupervisorError as error:
                self.lost()
                if attempt == _OPEN_ATTEMPTS or isinstance(error, ChildTimedOut):
                    raise ProfilerError(
                        f"GPU {self._device_index} cannot be used: {loss(error)[1]}; try another --gpu_ids"
                    ) from None
        raise AssertionError("the last attempt returns or raises")

    def _start(self) -> StreamChild:
        if (early := self._early.take(self._argv, self._environment)) is not None:
            return early
        child = StreamChild()
        child.start(self._argv, self._environment, f"{self._log_stem}_{self._started % 2}.log")
        self._started += 1
        return child

    def _live(self) -> StreamChild:
        assert self._child is not None
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._child = self._session = None
        self._is_starting = False


def environment_of(visible: str, device_index: int, cache_dir: str) -> dict[str, str]:
    """Return the environment of the process: its variable `visible` makes only GPU `device_index` visible."""
    environment = child_environment()
    environment.pop("TRITON_INTERPRET", None)
    shown = environment.get(visible)
    devices = [part.strip() for part in shown.split(",") if part.strip()] if shown else []
    environment[visible] = devices[device_index] if device_index < len(devices) else str(device_index)
    # Number devices as nvidia-smi and genkern do. CUDA's own order is by speed.
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    environment["TRITON_CACHE_DIR"] = str(Path(cache_dir) / "triton_launchers")
    return environment


def loss(error: SupervisorError) -> tuple[Outcome, str]:
    """Return outcome and message for the candidate that ended the process, with the tail of its standard error."""
    if isinstance(error, ChildDied):
        lines = [" ".join(line.split()) for line in error.exit.stderr_tail.splitlines() if line.strip()]
        said = " | ".join(lines[-_TAIL_LINES:])[-_MESSAGE_CHARACTERS:]
        return Outcome.CRASHED, f"the measured process was lost: {error.exit.description}" + (
            f"; {said}" if said else ""
        )
    return Outcome.TIMED_OUT if isinstance(error, ChildTimedOut) else Outcome.CRASHED, str(error)


def samples_of(values: Any) -> tuple[float, ...]:
    """Return the times in microseconds, at least one. Raises TypeError or ValueError for anything else."""
    samples = tuple(float(value) for value in values)
    if not samples or not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise ValueError(f"not a list of times: {values}")
    return samples


def measured_of(name: str, stage: str, samples: tuple[float, ...], time_source: str, note: str = "") -> Measurement:
    """Return a Measurement whose duration is the median of `samples`, in microseconds."""
    median_us = statistics.median(samples)
    return Measurement(name, Outcome.MEASURED, time_source, stage, median_us, samples, note)


def screened_of_answer(name: str, answer: dict[str, Any], time_source: str) -> Measurement:
    """Parse an answer to a screening request. Raises ChildGarbled for a malformed one."""
    if answer.get("config") != name:
        raise ChildGarbled(f"the measured process answered for {str(answer.get('config'))[:100]!r}, not {name}")
    for key, outcome in _WITHOUT_TIMES.items():
        if key in answer:
            return Measurement(name, outcome, time_source, message=str(answer[key]))
    try:
        samples = samples_of(answer["samples_us"])
    except (KeyError, TypeError, ValueError) as error:
        raise ChildGarbled(f"the measured process sent a malformed answer: {error!r}") from None
    note = "one launch, far slower than the best" if answer.get("hopeless") else ""
    return measured_of(name, "screen", samples, time_source, note)


def check_of_answer(name: str, size: str, method: str, answer: dict[str, Any]) -> Check:
    """Parse an answer to a check request. Raises ChildGarbled for a malformed one."""
    if "error" in answer:
        return Check(name, False, 1.0, math.inf, size, method, str(answer["error"]))
    if "no_memory" in answer:
        why = f"not enough memory to check it: {answer['no_memory']}"
        return Check(name, False, 1.0, math.inf, size, NOT_CHECKED, why, Outcome.UNCHECKED)
    passed, message, rounds = answer.get("passed"), answer.get("message"), answer.get("rounds")
    ratio, row = answer.get("error_ratio"), answer.get("worst_row_error")
    if (
        not isinstance(passed, bool)
        or not isinstance(message, str)
        or not isinstance(rounds, list)
        or not isinstance(ratio, int | float)
        or not isinstance(row, int | float)
    ):
        raise ChildGarbled(f"the answer to the check is malformed: {str(answer)[:200]}")
    return Check(name, passed, float(ratio), float(row), size, method, message, rounds=tuple(map(str, rounds)))


def took_ms(answer: dict[str, Any]) -> float | None:
    """Return the milliseconds that an answer says it took, or None if they are missing or malformed."""
    ms = answer.get("took_ms")
    return ms if isinstance(ms, float) and math.isfinite(ms) else None


def screen_request(candidates: Sequence[Candidate], best_us: float | None) -> dict[str, Any]:
    """Return a request to screen candidates that share binaries and plan; includes the best time so far."""
    shared = candidates[0].request
    return {
        "command": "screen",
        "configs": [candidate.config.name for candidate in candidates],
        "binaries": shared["binaries"],
        "codes": shared["codes"],
        "plan": shared["plan"],
        "run_times": [dict(candidate.run_time) for candidate in candidates],
        **({} if best_us is None else {"best_us": best_us}),
    }
