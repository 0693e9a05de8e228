"""The measured process: loads one generated module at a time; launches, times and checks kernels on request.

    python -m genkern.profiling.harness JOB.json     launches a schedule under a profiler (rocprofv3, rocprof)
    python -m genkern.profiling.harness --serve T    answers requests, timing with T (cudagraph, hipgraph ...)
    python -m genkern.profiling.harness --wait       imports PyTorch, then reads from its first input line which of the
                                                     above to do; with --context it also creates the context of the
                                                     first device meanwhile

The server exchanges JSON lines over standard input and output: one answer to each request, in order ("screen" has one
for each of its configs), preceded by any number of {"running": NAME}. A fault of the device ends the process. The
config that caused it is the first without an answer, or the name last reported as running.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from genkern.errors import one_line
from genkern.kernels.refusal import refused_by_device, refused_by_library
from genkern.profiling.aiter_finder import AiterFinder
from genkern.profiling.algorithms import Algorithms, Screening
from genkern.profiling.clocks import AmdSmiClock
from genkern.profiling.launch_job import FENCE, PLACES, is_place
from genkern.profiling.loaded_gemm import Call, Launchable, LoadedGemm
from genkern.profiling.server import Server
from genkern.profiling.timers import make_timer
from genkern.runtime.backends.lt_api import LtError
from genkern.timing.libraries import AITER, OURS, VENDOR, library_of
from genkern.timing.profiler import TIMERS
from genkern.timing.session import Session

# Calls in one sample of a library algorithm.
_SAMPLED_CALLS = 8


def serve(requests: IO[str], answers: IO[str], time_source: str, make: Callable[[str], Server] = Server) -> None:
    """Answer requests until they end. An error that leaves the device unusable ends the process."""
    # This import takes most of the start-up time and does not touch the device. A reserve process has already done it.
    import torch

    def write(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    server = make(time_source)
    for line in requests:
        try:
            answer = server.answer(json.loads(line), write)
            # An asynchronous fault is raised here, not at a later candidate.
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except Exception as error:
            traceback.print_exc()
            print(one_line(error), file=sys.stderr, flush=True)
            # With a broken context, Python's own exit may wait forever.
            os._exit(1)
        write(answer)


def launch_schedule(job_path: str) -> None:
    """Launch every call of a job's schedule in order, and log before and after each config; the profiler times them.

    The clock is read and logged before each round of the finals and after the last. An error that reveals a bug of
    genkern is logged too, and ends the process.
    """
    with open(job_path) as file:
        job = json.load(file)
    with open(job["launch_log"], "a", buffering=1) as log:
        try:
            _launch_all(job, log)
        except Exception as error:
            if not refused_by_device(error):
                log.write(json.dumps({"bug": one_line(error), "details": traceback.format_exc()}) + "\n")
            raise


def _launch_all(job: dict[str, Any], log: IO[str]) -> None:
    import torch

    gemm = LoadedGemm(Session.from_json(json.dumps(job["session"])))
    next_copy = 0
    library = _Library(gemm)
    clock = AmdSmiClock()
    under_way: int | None = None

    def read_clock(before: int) -> None:
        log.write(json.dumps({"clock_mhz": clock.mhz(), "round": before}) + "\n")

    for entry in job["schedule"]:
        name = entry["config"]
        if entry["round"] != under_way:
            under_way = entry["round"]
            read_clock(under_way)
        log.write(json.dumps({"config": name, "start": True}) + "\n")
        try:
            if is_library := library_of(name) not in OURS:
                call = library.fenced(name)
            else:
                call = gemm.bind(Launchable.of(entry))
        except Exception as error:
            if not (refused_by_library(error) if name == VENDOR else refused_by_device(error)):
                raise
            log.write(json.dumps({"config": name, "error": one_line(error)}) + "\n")
            continue
        for _ in range(entry["calls"]):
            call(next_copy)
            next_copy += 1
        torch.cuda.synchronize()
        symbols = [FENCE, FENCE] if is_library else [_symbol(path) for path in entry["binaries"]]
        real = {"call": library.named[name]} if name in library.named else {}
        log.write(json.dumps({"config": name, "symbols": symbols, "calls": entry["calls"], **real}) + "\n")
    if under_way is not None:
        read_clock(under_way + 1)


class _Library:
    """Calls of libraries (PyTorch's own, cuBLASLt, hipBLASLt, AITER) between fences.

    Each call is made once without fences before: it loads the library, allocates workspaces, and is refused if it
    cannot run. A job may name a place, such as a library's second-best call, instead of an algorithm; `named` maps each
    place to the algorithm that it turned out to be.
    """

    def __init__(self, gemm: LoadedGemm) -> None:
        self._gemm = gemm
        self._calls: dict[str, Call] = {}
        self._finders: dict[str, Algorithms | AiterFinder] = {}
        self._best: dict[str, dict[str, Call]] = {}
        self.named: dict[str, str] = {}

    def fenced(self, name: str) -> Call:
        """Return VENDOR's call, an algorithm's call by its name, or the call of a place.

        Raises the library's error if it refuses the call.
        """
        import torch

        from genkern.profiling.fence import fenced

        if name not in self._calls:
            call = self._call(name)
            call(0)
            torch.cuda.synchronize()
            self._calls[name] = fenced(call)
        return self._calls[name]

    def _call(self, name: str) -> Call:
        if name == VENDOR:
            return self._gemm.vendor()
        library = library_of(name)
        if library not in self._finders:
            self._finders[library] = AiterFinder(self._gemm) if library == AITER else Algorithms(self._gemm)
        finder = self._finders[library]
        if not is_place(name):
            return finder.call(name)
        if library not in self._best:
            binds = {each: partial(finder.call, each) for each in finder.names()}
            timer = make_timer(TIMERS["amd"][-1])
            screening = Screening(timer, lambda count: [*range(count)], lambda _: _SAMPLED_CALLS, _nothing, _failed)
            self._best[library] = screening.best(binds, None) if binds else {}
        best, place = self._best[library], PLACES[library].index(name)
        if place >= len(best):
            raise LtError("the library has no further algorithm for this problem")
        self.named[name] = list(best)[place]
        return best[self.named[name]]


def _nothing(told: object) -> None:
    """Ignore {"running": NAME}, since the launch log records it."""


def _failed(name: str, error: Exception) -> None:
    """Ignore a refusal, which leaves an algorithm out; raise other errors."""
    if not refused_by_device(error):
        raise error


def _symbol(entry: str) -> str:
    with open(os.path.join(entry, "genkern.json")) as file:
        return str(json.load(file)["symbol"])


def serve_parent(time_source: str, make: Callable[[str], Server] = Server) -> None:
    """Answer the parent process over standard input and output."""
    # Libraries print to standard output, so answers use a duplicate of its descriptor and descriptor 1 goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers, time_source, make)


def wait_and_become(*, with_context: bool) -> None:
    """Continue with the arguments and the environment in the first input line; end if there is none."""
    if with_context:
        # The driver takes half a second to create a context; PyTorch is imported meanwhile.
        threading.Thread(target=_make_context, daemon=True).start()
    import torch  # noqa: F401

    if line := sys.stdin.readline():
        told = json.loads(line)
        os.environ.clear()
        os.environ.update(told["environment"])
        main(told["argv"])


def _make_context() -> None:
    """Create the first device's primary context, which PyTorch uses too. Errors are ignored."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), 0):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def main(argv: list[str]) -> None:
    if argv[:1] == ["--wait"]:
        wait_and_become(with_context=argv[1:] == ["--context"])
    elif argv[:1] == ["--serve"]:
        serve_parent(argv[1])
    else:
        launch_schedule(argv[0])


if __name__ == "__main__":
    main(sys.argv[1:])
