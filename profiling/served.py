"""ServedProfiler: candidates timed and checked in one long-lived supervised process, by CUDA graphs or CUPTI."""

from __future__ import annotations

import contextlib
import os
import queue
import statistics
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from genkern.errors import ProfilerError
from genkern.profiling.session import Session
from genkern.profiling.supervisor import ChildDied, ChildGarbled, ChildTimedOut, StreamChild
from genkern.records import Candidate, Check, Measurement, Outcome

# Requests under way: enough that the measured process never waits for this one.
_WINDOW = 16
# Importing PyTorch, creating the context and filling the operands.
_OPEN_TIMEOUT_S = 180.0
# A device on which this many processes in a row die without measuring anything is left alone.
_DEATHS_IN_A_ROW = 5
VENDOR = "vendor"


class ServedProfiler:
    """`time_source` is "cudagraph" or "cupti". One instance serves one device, problem after problem.

    `visible` is the variable that shows the process its one device: CUDA_VISIBLE_DEVICES, or
    HIP_VISIBLE_DEVICES on AMD, where this serves for checks only.
    """

    def __init__(
        self, time_source: str, device_index: int, cache_dir: str, log_dir: str, visible: str = "CUDA_VISIBLE_DEVICES"
    ) -> None:
        self.time_source = time_source
        self.device = ""
        self.torch_version = ""
        self._visible = visible
        self._device_index = device_index
        self._cache_dir = cache_dir
        self._stderr_path = str(Path(log_dir) / f"harness_{device_index}.log")
        self._child: StreamChild | None = None
        self._session: Session | None = None
        self._deaths = 0

    def screen(self, session: Session, candidates: Iterable[Candidate]) -> Iterator[Measurement]:
        """One Measurement per candidate, in the order in which they come; faults cost their candidate only."""
        self._open(session)
        feed = _Feed(candidates)
        under_way: deque[Candidate] = deque()
        while True:
            while len(under_way) < _WINDOW and (candidate := feed.next(wait=not under_way)) is not None:
                under_way.append(candidate)
                self._send(_screen_request(candidate))
            if not under_way:
                return
            try:
                answer = self._child_alive().receive(session.budget.timeout_s)
                yield self._measurement(under_way.popleft(), answer)
                self._deaths = 0
            except ChildTimedOut:
                yield self._lost(under_way.popleft(), Outcome.TIMED_OUT, f"no result after {session.budget.timeout_s:g} s")
                self._restart(session, under_way)
            except (ChildDied, ChildGarbled) as error:
                yield self._lost(under_way.popleft(), Outcome.CRASHED, _how(error))
                self._restart(session, under_way)

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """The finalists and the vendor library, round-robin in shuffled order; a fault falls on the first of them.

        The vendor library's measurement is named "vendor"; it is missing when it does not support the problem.
        """
        left = list(finalists)
        lost: list[Measurement] = []
        while True:
            self._open(session)
            request = {
                "command": "retime",
                "candidates": [_names(candidate) for candidate in left],
                "rounds": session.budget.final_rounds,
                "vendor": True,
                "seed": session.seed,
            }
            try:
                answer = self._ask(request, session.budget.timeout_s * (2 + len(left)))
                break
            except ProfilerError as error:
                self.close()
                if not left:
                    raise
                # Nobody knows which one it was: check them one by one, and drop those that fail alone.
                survivors, dropped = self._survivors(session, left, str(error))
                lost += dropped
                if not dropped:
                    raise
                left = survivors
        measured = [self._final(name, samples) for name, samples in answer["samples_us"].items()]
        failed = [
            Measurement(name, Outcome.LAUNCH_FAILED, self.time_source, "final", message=message)
            for name, message in answer["errors"].items()
            if name != VENDOR
        ]
        return measured + failed + lost

    def check(self, session: Session, candidate: Candidate, err_ratio: float, worst_row: float) -> Check:
        """Compare the candidate's output, NaN-filled before, with the float32 reference on the device."""
        self._open(session)
        request = {"command": "check", **_names(candidate)}
        name, size = candidate.config.name, session.problem.size
        try:
            answer = self._ask(request, session.budget.timeout_s + 60)
        except ProfilerError as error:
            self.close()
            return Check(name, False, 1.0, float("inf"), size, "gpu", str(error))
        ratio, row = answer["error_ratio"], answer["worst_row_error"]
        passed = ratio <= err_ratio and row <= worst_row
        return Check(name, passed, ratio, row, size, "gpu")

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._child = None
        self._session = None

    def _survivors(
        self, session: Session, candidates: Sequence[Candidate], why: str
    ) -> tuple[list[Candidate], list[Measurement]]:
        dropped = [m for m in self.screen(session, candidates) if m.outcome is not Outcome.MEASURED]
        names = {m.config for m in dropped}
        lost = [Measurement(m.config, m.outcome, self.time_source, "final", message=m.message or why) for m in dropped]
        return [candidate for candidate in candidates if candidate.config.name not in names], lost

    def _open(self, session: Session) -> None:
        if self._child is not None and self._session == session:
            return
        if self._child is None:
            self._child = StreamChild()
            argv = [sys.executable, "-m", "genkern.profiling.harness", "--serve", self.time_source]
            self._child.start(argv, self._environment(), self._stderr_path)
        answer = self._ask({"command": "open", "session": session.to_json()}, _OPEN_TIMEOUT_S)
        self.device, self.torch_version = answer["device"], answer["torch"]
        self._session = session

    def _restart(self, session: Session, under_way: Iterable[Candidate]) -> None:
        self.close()
        self._deaths += 1
        if self._deaths >= _DEATHS_IN_A_ROW:
            raise ProfilerError(
                f"GPU {self._device_index}: {self._deaths} measured processes in a row died without a result; "
                f"see {self._stderr_path}, and try another --gpu_ids"
            )
        self._open(session)
        for candidate in under_way:
            self._send(_screen_request(candidate))

    def _send(self, request: dict[str, Any]) -> None:
        # A child that died while we wrote is noticed when its answer is awaited.
        with contextlib.suppress(ChildDied):
            self._child_alive().send(request)

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        child = self._child_alive()
        child.send(request)
        answer: dict[str, Any] = child.receive(timeout_s)
        return answer

    def _child_alive(self) -> StreamChild:
        assert self._child is not None
        return self._child

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment.pop("TRITON_INTERPRET", None)
        shown = environment.get(self._visible)
        devices = [part.strip() for part in shown.split(",") if part.strip()] if shown else []
        index = self._device_index
        environment[self._visible] = devices[index] if index < len(devices) else str(index)
        environment["TRITON_CACHE_DIR"] = str(Path(self._cache_dir) / "triton_launchers")
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return environment

    def _measurement(self, candidate: Candidate, answer: dict[str, Any]) -> Measurement:
        name = candidate.config.name
        if "error" in answer:
            return Measurement(name, Outcome.LAUNCH_FAILED, self.time_source, message=answer["error"])
        samples = tuple(answer["samples_us"])
        note = "one launch, far beyond the best" if answer.get("hopeless") else ""
        return Measurement(name, Outcome.MEASURED, self.time_source, "screen", statistics.median(samples), samples, note)

    def _final(self, name: str, samples: Sequence[float]) -> Measurement:
        return Measurement(name, Outcome.MEASURED, self.time_source, "final", statistics.median(samples), tuple(samples))

    def _lost(self, candidate: Candidate, outcome: Outcome, message: str) -> Measurement:
        return Measurement(candidate.config.name, outcome, self.time_source, message=message)


class _Feed:
    """Pulls candidates from an iterator in a thread of its own, since the farm behind it makes one wait."""

    _END = object()

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=4096)
        self._ended = False
        self._thread = threading.Thread(target=self._pull, args=(candidates,), daemon=True)
        self._thread.start()

    def _pull(self, candidates: Iterable[Candidate]) -> None:
        try:
            for candidate in candidates:
                self._queue.put(candidate)
            self._queue.put(self._END)
        except BaseException as error:  # handed to the consumer, whatever it is
            self._queue.put(error)

    def next(self, *, wait: bool) -> Candidate | None:
        """The next candidate; None at the end, or when there is none yet and `wait` is false."""
        if self._ended:
            return None
        try:
            item = self._queue.get(block=wait)
        except queue.Empty:
            return None
        if item is self._END:
            self._ended = True
            return None
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        candidate: Candidate = item
        return candidate


def _names(candidate: Candidate) -> dict[str, Any]:
    return {"config": candidate.config.name, "binaries": [binary.path for binary in candidate.binaries]}


def _screen_request(candidate: Candidate) -> dict[str, Any]:
    return {"command": "screen", **_names(candidate)}


def _how(error: ProfilerError) -> str:
    if isinstance(error, ChildDied):
        return f"the measured process was lost: {error.exit.description}; {error.exit.last_line}"[:300]
    return str(error)
