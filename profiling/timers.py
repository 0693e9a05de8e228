"""Timers of the measured process on NVIDIA: CUDA graphs, and CUPTI's activity records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from genkern.profiling.cupti import KernelTrace
from genkern.profiling.loaded_gemm import Call

# GPU clock cycles that keep the GPU busy while the host enqueues what is timed: about 50 us at 2 GHz, longer
# than a graph launch takes, so that no host time is in a sample.
_BLOCKING_CYCLES = 100_000


class Timer(Protocol):
    """Prepares a call once, then takes samples of it: microseconds of one call, all its kernels."""

    time_source: str

    def prepare(self, call: Call, copies: Sequence[int]) -> Callable[[], float]:
        """A function that runs the call once for each copy number and returns the mean time of one call."""


class CudaGraphTimer:
    """Replays a graph of the calls between two events, the GPU kept busy beforehand."""

    time_source = "cudagraph"

    def __init__(self) -> None:
        import torch

        self._stream = torch.cuda.Stream()
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def prepare(self, call: Call, copies: Sequence[int]) -> Callable[[], float]:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin()
            try:
                for copy in copies:
                    call(copy)
            finally:
                graph.capture_end()

        def sample() -> float:
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(_BLOCKING_CYCLES)
                self._start.record()
                graph.replay()
                self._end.record()
            self._end.synchronize()
            return float(self._start.elapsed_time(self._end)) * 1e3 / len(copies)

        return sample


class CuptiTimer:
    """Launches the calls one by one and adds up the kernel times that CUPTI recorded."""

    time_source = "cupti"

    def __init__(self) -> None:
        self._trace = KernelTrace()

    def prepare(self, call: Call, copies: Sequence[int]) -> Callable[[], float]:
        import torch

        def sample() -> float:
            self._trace.clear()
            for copy in copies:
                call(copy)
            torch.cuda.synchronize()
            durations_ns = [kernel.duration_ns for kernel in self._trace.collect()]
            if not durations_ns or len(durations_ns) % len(copies):
                raise RuntimeError(f"CUPTI recorded {len(durations_ns)} kernels for {len(copies)} calls")
            return sum(durations_ns) * 1e-3 / len(copies)

        return sample


def make_timer(time_source: str) -> Timer:
    """The timer of that name, "cudagraph" or "cupti"."""
    timers: dict[str, Callable[[], Any]] = {"cudagraph": CudaGraphTimer, "cupti": CuptiTimer}
    timer: Timer = timers[time_source]()
    return timer
