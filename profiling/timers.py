"""Timers of the measured process: CUDA or HIP graphs, events alone, and CUPTI's activity records.

PyTorch offers HIP's streams, events and graphs under the names of CUDA's. These timers have never run with HIP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from genkern.gemm.records import Dispatch
from genkern.profiling.cuda import icache
from genkern.profiling.cuda.cupti import KernelTrace
from genkern.profiling.loaded_gemm import Call
from genkern.timing.profiler import vendor_of

# GPU clock cycles that keep the GPU busy while the host enqueues the timed work: about 50 us at 2 GHz, longer than a
# graph launch takes on an idle host. For a slower host the time increases up to 200 times, 10 ms.
_BUSY_CYCLES = 100_000
_MOST_TIMES = 200
_TRIES = 10
# Microseconds that `_BUSY_CYCLES` should take. On HIP the unit of `_sleep` differs by target (PyTorch's Sleep.cu: gfx11
# counts ticks of 10 ns), so the cycles are measured there.
_BUSY_US = 50.0
# Bytes of a cache sweep on HIP, whose L2_cache_size is that of one XCD: more than the 256 MiB last level of an MI300X.
_HIP_SWEEP_BYTES = 512 * 2**20
# Factor by which the busy time returns to its usual length when the host is fast again.
_EASING = 0.98

Sampler = Callable[[], float]
# Enqueues the evicting kernel on a CUstream handle.
Flush = Callable[[int], None]
# Returns the numbers of the next copies of the weights, in rotation.
NextCopies = Callable[[], Sequence[int]]


class Timer(Protocol):
    """Takes times of calls in microseconds. A call includes all its kernels."""

    time_source: str

    def rough_us(self, call: Call, copy: int) -> float:
        """Return the time of one call as the host launches it. May include host time, so it is an upper bound."""

    def launch_us(self, call: Call, copy: int) -> float:
        """Return the time of one call without host time."""

    def prepare(self, call: Call, copies: Sequence[int]) -> Sampler:
        """Return a function that runs the call once per copy number and returns the mean time of one call."""

    def prepare_flushed(self, call: Call, next_copies: NextCopies, flush: Flush) -> Sampler:
        """Return a function like `prepare`'s whose calls each follow an untimed flush of the instruction caches."""


class BusyStream:
    """A stream on which work is timed while the GPU is kept busy until the host has enqueued all of it.

    If the host was slower than that (compile workers load the same CPUs), the event before the work is already complete
    when the host is done. Such a time includes host time, so it is discarded and taken again with a longer busy time.
    """

    def __init__(self) -> None:
        import torch

        self._stream = torch.cuda.Stream()
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._usual_cycles = _BUSY_CYCLES if torch.version.hip is None else self._measured_cycles()
        self._cycles = self._usual_cycles
        self._sweep: Any = None
        self.retries = 0

    @property
    def handle(self) -> int:
        return int(self._stream.cuda_stream)

    def rough_us(self, enqueue: Callable[[], None]) -> float:
        """Return the microseconds from before to after the work, without keeping the GPU busy."""
        import torch

        with torch.cuda.stream(self._stream):
            self._start.record()
            enqueue()
            self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3

    def time_us(self, enqueue: Callable[[], None], before: Callable[[], None] | None = None) -> float:
        """Return the time of the work in microseconds. `before` enqueues work that precedes the busy time.

        If the host is late in every attempt, returns the shortest time, since lateness only adds time.
        """
        import torch

        late_us: list[float] = []
        while len(late_us) < _TRIES:
            with torch.cuda.stream(self._stream):
                if late_us:
                    self._sweep_cache()
                if before is not None:
                    before()
                torch.cuda._sleep(self._cycles)
                self._start.record()
                enqueue()
                self._end.record()
                late = self._start.query()
            self._end.synchronize()
            elapsed_us = float(self._start.elapsed_time(self._end)) * 1e3
            if not late:
                self._cycles = max(self._usual_cycles, int(self._cycles * _EASING))
                return elapsed_us
            late_us.append(elapsed_us)
            self.retries += 1
            self._cycles = min(self._usual_cycles * _MOST_TIMES, self._cycles * 2)
        return min(late_us)

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """Return the work as a CUDA graph."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin()
            try:
                enqueue()
            finally:
                graph.capture_end()
        return graph

    def _measured_cycles(self) -> int:
        """Return the argument of `_sleep` that takes 50 us.

        It is measured by the second of two calls, since the first one loads its kernel.
        """
        import torch

        for _ in range(2):
            spell_us = self.rough_us(lambda: torch.cuda._sleep(_BUSY_CYCLES))
        return max(1, round(_BUSY_CYCLES * _BUSY_US / max(spell_us, 1.0)))

    def _sweep_cache(self) -> None:
        """Write twice the cache's size, on HIP at least `_HIP_SWEEP_BYTES`, so that no weights stay cached."""
        import torch

        if self._sweep is None:
            size = 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)
            if torch.version.hip is not None:
                size = max(size, _HIP_SWEEP_BYTES)
            self._sweep = torch.empty(size, dtype=torch.int8, device="cuda")
        self._sweep.zero_()


class EventTimer:
    """Times calls between two events, launched one by one by the host, each with its launch gap.

    The GPU is kept busy until all calls are enqueued, so it runs them back to back.
    """

    def __init__(self, time_source: str) -> None:
        self.time_source = time_source
        self._busy = BusyStream()

    def rough_us(self, call: Call, copy: int) -> float:
        return self._busy.rough_us(lambda: call(copy))

    def launch_us(self, call: Call, copy: int) -> float:
        return self._busy.time_us(lambda: call(copy))

    def prepare(self, call: Call, copies: Sequence[int]) -> Sampler:
        def calls() -> None:
            for copy in copies:
                call(copy)

        work = self._work(calls)
        return lambda: self._busy.time_us(work) / len(copies)

    def prepare_flushed(self, call: Call, next_copies: NextCopies, flush: Flush) -> Sampler:
        """Time each call between two events, without a graph. This adds the 1 to 2 us of an event to each call."""

        def sample() -> float:
            copies = next_copies()
            total_us = 0.0
            for copy in copies:
                total_us += self._busy.time_us(lambda copy=copy: call(copy), lambda: flush(self._busy.handle))  # type: ignore[misc]
            return total_us / len(copies)

        return sample

    def _work(self, calls: Callable[[], None]) -> Callable[[], None]:
        """Return the function that enqueues the calls while they are timed."""
        return calls


class GraphTimer(EventTimer):
    """Replays a graph of the calls, so that the host makes a single launch."""

    def _work(self, calls: Callable[[], None]) -> Callable[[], None]:
        replay: Callable[[], None] = self._busy.capture(calls).replay
        return replay


class CuptiTimer:
    """Launches the calls one by one and takes the time during which kernels ran, by CUPTI's records, without gaps."""

    time_source = "cupti"

    def __init__(self) -> None:
        self._trace = KernelTrace()
        self._busy = BusyStream()

    def rough_us(self, call: Call, copy: int) -> float:
        return self._busy.rough_us(lambda: call(copy))

    def launch_us(self, call: Call, copy: int) -> float:
        return self._sample(call, [copy], None)

    def prepare(self, call: Call, copies: Sequence[int]) -> Sampler:
        return lambda: self._sample(call, copies, None)

    def prepare_flushed(self, call: Call, next_copies: NextCopies, flush: Flush) -> Sampler:
        return lambda: self._sample(call, next_copies(), flush)

    def _sample(self, call: Call, copies: Sequence[int], flush: Flush | None) -> float:
        import torch

        torch.cuda.synchronize()
        self._trace.clear()
        for copy in copies:
            if flush is not None:
                flush(torch.cuda.current_stream().cuda_stream)
            call(copy)
        torch.cuda.synchronize()
        kernels = [kernel for kernel in self._trace.collect() if kernel.symbol != icache.KERNEL]
        if not kernels or len(kernels) % len(copies):
            raise RuntimeError(f"CUPTI recorded {len(kernels)} kernels for {len(copies)} calls")
        return busy_ns(kernels) * 1e-3 / len(copies)


def busy_ns(kernels: Sequence[Dispatch]) -> int:
    """Return the nanoseconds during which at least one kernel ran; `kernels` are in order of start.

    This is not the sum of their times: a dependent kernel that starts early waits while the kernel before it runs.
    """
    busy = until_ns = 0
    for kernel in kernels:
        busy += max(0, kernel.end_ns - max(kernel.start_ns, until_ns))
        until_ns = max(until_ns, kernel.end_ns)
    return busy


def make_timer(time_source: str) -> Timer:
    """Return the timer of this name (genkern.timing.profiler). Raises KeyError for an unknown name."""
    vendor_of(time_source)
    if time_source == CuptiTimer.time_source:
        return CuptiTimer()
    return GraphTimer(time_source) if time_source.endswith("graph") else EventTimer(time_source)
