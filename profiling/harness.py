"""The measured process: loads one generated module at a time, and launches, times and checks what it is told to.

    python -m genkern.profiling.harness JOB.json     launches a schedule under a profiler (rocprofv3, rocprof)
    python -m genkern.profiling.harness --serve T    answers requests, timing with T (cudagraph or cupti)

Serving speaks JSON lines over standard input and output, one answer to each request, in order. A request
that breaks the device ends the process: the first unanswered request is the one that did it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import IO, Any

from genkern.profiling.accuracy import error_ratio, worst_row_error
from genkern.profiling.loaded_gemm import Call, LoadedGemm
from genkern.profiling.session import Session
from genkern.profiling.timers import Timer, make_timer

# A graph of calls runs for about this long, so that the 1 to 2 us between an event and the first kernel
# stay below 2 % of it; short calls are repeated up to so many times.
_SAMPLE_US = 100.0
_MAX_REPEATS = 32
# A candidate whose single launch takes this much longer than the best sample so far is not timed further.
_HOPELESS_FACTOR = 3.0
_HOPELESS_SLACK_US = 40.0
VENDOR = "vendor"


class Server:
    """Answers the requests of one parent. `answer` maps a request to its answer, both JSON objects."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._gemm: LoadedGemm | None = None
        self._calls: dict[str, Call] = {}
        self._best_us = float("inf")
        self._next_copy = 0
        self._expected: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        command = request["command"]
        if command == "open":
            return self._open(Session.from_json(request["session"]))
        if command == "screen":
            return self._screen(request["config"], request["binaries"])
        if command == "retime":
            return self._retime(request["candidates"], request["rounds"], request["vendor"], request["seed"])
        if command == "check":
            return self._check(request["config"], request["binaries"])
        raise ValueError(f"unknown command {command!r}")

    def _open(self, session: Session) -> dict[str, Any]:
        import torch

        self._gemm = self._expected = None
        self._calls = {}
        self._best_us = float("inf")
        torch.cuda.empty_cache()
        self._gemm = LoadedGemm(session)
        torch.cuda.synchronize()
        name = torch.cuda.get_device_name(0)
        return {"device": name, "copies": self._gemm.copies, "torch": torch.__version__}

    def _screen(self, name: str, binaries: list[str]) -> dict[str, Any]:
        import torch

        gemm = self._need_gemm()
        try:
            call = gemm.bind(name, binaries)
        except Exception as error:  # Triton's OutOfResources and the driver's refusals have no common base
            return {"config": name, "error": _one_line(error)}
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        try:
            for copy in self._copies(max(1, gemm.session.budget.warmup)):
                start.record()
                call(copy)
                end.record()
        except Exception as error:
            # A refused launch leaves the device as it was; after a fault this raises, and ends the process.
            torch.cuda.synchronize()
            return {"config": name, "error": _one_line(error)}
        end.synchronize()
        first_us = start.elapsed_time(end) * 1e3
        if gemm.session.budget.protocol == "tune_gemm":
            samples = [self._timer.prepare(call, [copy])() for copy in self._copies(10)]
            return {"config": name, "samples_us": samples[-1:]}
        if first_us > _HOPELESS_FACTOR * self._best_us + _HOPELESS_SLACK_US:
            return {"config": name, "samples_us": [first_us], "hopeless": True}
        sample_us = self._timer.prepare(call, self._copies(self._repeats(first_us)))()
        self._best_us = min(self._best_us, sample_us)
        return {"config": name, "samples_us": [sample_us]}

    def _retime(
        self, candidates: list[dict[str, Any]], rounds: int, vendor: bool, seed: int
    ) -> dict[str, Any]:
        gemm = self._need_gemm()
        samplers = {}
        errors = {}
        calls = {entry["config"]: (lambda entry=entry: gemm.bind(entry["config"], entry["binaries"])) for entry in candidates}
        if vendor:
            calls[VENDOR] = gemm.vendor
        # Every replay must find the weights cold that the last replay, of whichever candidate, used.
        repeats = max(self._repeats(self._best_us), min(gemm.copies, _MAX_REPEATS * 2))
        copies = [i % gemm.copies for i in range(repeats)]
        for name, bind in calls.items():
            try:
                call = bind()
                call(0)
                samplers[name] = self._timer.prepare(call, copies)
                samplers[name]()
            except Exception as error:
                errors[name] = _one_line(error)
        samples: dict[str, list[float]] = {name: [] for name in samplers}
        order = list(samplers)
        shuffle = random.Random(seed)
        for _ in range(rounds):
            shuffle.shuffle(order)
            for name in order:
                samples[name].append(samplers[name]())
        return {"samples_us": samples, "errors": errors}

    def _check(self, name: str, binaries: list[str]) -> dict[str, Any]:
        import torch

        gemm = self._need_gemm()
        if self._expected is None:
            self._expected = gemm.module.reference(gemm.operands)
        c = gemm.operands["c"]
        c.fill_(float("nan"))
        call = gemm.vendor() if name == VENDOR else gemm.bind(name, binaries)
        call(0)
        torch.cuda.synchronize()
        ratio = error_ratio(c, self._expected)
        return {"config": name, "error_ratio": ratio, "worst_row_error": worst_row_error(c, self._expected)}

    def _need_gemm(self) -> LoadedGemm:
        if self._gemm is None:
            raise ValueError("no session is open")
        return self._gemm

    def _repeats(self, call_us: float) -> int:
        least = self._need_gemm().session.budget.screen_launches
        return max(least, min(_MAX_REPEATS, int(_SAMPLE_US / max(call_us, 1.0))))

    def _copies(self, count: int) -> list[int]:
        """The next `count` copies of the weights, in rotation over all that this process launches."""
        first, self._next_copy = self._next_copy, self._next_copy + count
        return list(range(first, first + count))


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def serve(requests: IO[str], answers: IO[str], timer_name: str) -> None:
    """Answer until the requests end. An error that leaves the device unusable ends the process."""
    import torch

    server = Server(make_timer(timer_name))
    for line in requests:
        request = json.loads(line)
        answer = server.answer(request)
        # Raises here, not at a later candidate, when an asynchronous fault has happened.
        torch.cuda.synchronize()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def launch_schedule(job_path: str) -> None:
    """Launch every call of a job's schedule in order, logging each before and after; the profiler times them."""
    import torch

    with open(job_path) as file:
        job = json.load(file)
    gemm = LoadedGemm(Session.from_json(json.dumps(job["session"])))
    next_copy = 0
    with open(job["launch_log"], "a", buffering=1) as log:
        for entry in job["schedule"]:
            name = entry["config"]
            log.write(json.dumps({"config": name, "start": True}) + "\n")
            try:
                call = gemm.bind(name, entry["binaries"])
            except Exception as error:
                log.write(json.dumps({"config": name, "error": _one_line(error)}) + "\n")
                continue
            for _ in range(entry["calls"]):
                call(next_copy)
                next_copy += 1
            torch.cuda.synchronize()
            symbols = [_symbol(path) for path in entry["binaries"]]
            log.write(json.dumps({"config": name, "symbols": symbols, "calls": entry["calls"]}) + "\n")


def _symbol(entry: str) -> str:
    with open(os.path.join(entry, "genkern.json")) as file:
        return str(json.load(file)["symbol"])


def main(argv: list[str]) -> None:
    if argv[:1] == ["--serve"]:
        # Libraries print to standard output; the answers keep a descriptor of their own.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        serve(sys.stdin, answers, argv[1])
    else:
        launch_schedule(argv[0])


if __name__ == "__main__":
    main(sys.argv[1:])
