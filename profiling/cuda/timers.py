"""Timers of the measured process on NVIDIA: CUDA graphs, and CUPTI's activity records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from genkern.errors import one_line
from genkern.gemm.records import Dispatch
from genkern.kernels.refusal import refused_by_device
from genkern.profiling.cuda import icache
from genkern.profiling.cuda.cupti import KernelTrace
from genkern.profiling.finals import SampleFailed
from genkern.profiling.loaded_gemm import Call

# GPU clock cycles that keep the GPU busy while the host enqueues what is timed: about 50 us at 2 GHz, longer
# than a graph launch takes on an idle host. A host that is slower gets longer, up to 10 ms.
_BUSY_CYCLES = 100_000
_MOST_BUSY_CYCLES = 20_000_000
_TRIES = 10
# Back towards the usual length, little by little, when the host is fast again.
_EASING = 0.98

Sampler = Callable[[], float]
# Enqueues the evicting kernel on the CUstream handle that it is given.
Flush = Callable[[int], None]
# The numbers of the copies of the weights to use next, in rotation.
NextCopies = Callable[[], Sequence[int]]


class Timer(Protocol):
    """Takes times of calls in microseconds: one call, all its kernels."""

    time_source: str

    def rough_us(self, call: Call, copy: int) -> float:
        """One call as the host launches it. May hold host time, so it is at least what the call takes."""

    def launch_us(self, call: Call, copy: int) -> float:
        """One call without host time."""

    def prepare(self, call: Call, copies: Sequence[int]) -> Sampler:
        """A function that runs the call once for each copy number and returns the mean time of one call."""

    def prepare_flushed(self, call: Call, next_copies: NextCopies, flush: Flush) -> Sampler:
        """The same for calls that each follow a flush of the instruction caches, which is not timed."""


def told(name: str, sampler: Sampler, tell: Callable[[dict[str, Any]], None]) -> Sampler:
    """The sampler, saying beforehand whose it is; a refusal becomes SampleFailed."""

    def sample() -> float:
        import torch

        tell({"running": name})
        try:
            return sampler()
        except Exception as error:
            torch.cuda.synchronize()
            if not refused_by_device(error):
                raise
            raise SampleFailed(one_line(error)) from None

    return sample


class BusyStream:
    """A stream on which work is timed with the GPU kept busy until the host has enqueued all of it.

    A host that was slower than that (compile workers load the same CPUs) is noticed, exactly: the event before
    the work is already complete when the host is done. Such a time has host time in it, so it is discarded and
    taken again behind a longer busy spell.
    """

    def __init__(self) -> None:
        import torch

        self._stream = torch.cuda.Stream()
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._cycles = _BUSY_CYCLES
        self._sweep: Any = None
        self.retries = 0

    @property
    def handle(self) -> int:
        return int(self._stream.cuda_stream)

    def rough_us(self, enqueue: Callable[[], None]) -> float:
        """Time on the GPU from before to after the work, without a busy spell."""
        import torch

        with torch.cuda.stream(self._stream):
            self._start.record()
            enqueue()
            self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3

    def time_us(self, enqueue: Callable[[], None], before: Callable[[], None] | None = None) -> float:
        """Time of the work in microseconds. `before` enqueues what comes before the busy spell.

        On a host that is late each time, the shortest of all times: being late can only add to it.
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
                self._cycles = max(_BUSY_CYCLES, int(self._cycles * _EASING))
                return elapsed_us
            late_us.append(elapsed_us)
            self.retries += 1
            self._cycles = min(_MOST_BUSY_CYCLES, self._cycles * 2)
        return min(late_us)

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """The work as a CUDA graph."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin()
            try:
                enqueue()
            finally:
                graph.capture_end()
        return graph

    def _sweep_cache(self) -> None:
        """Work that is repeated would find its weights in the cache: write twice the cache's size before it."""
        import torch

        if self._sweep is None:
            size = 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)
            self._sweep = torch.empty(size, dtype=torch.int8, device="cuda")
        self._sweep.zero_()


class CudaGraphTimer:
    """Replays a graph of the calls between two events on a busy stream."""

    time_source = "cudagraph"

    def __init__(self) -> None:
        self._busy = BusyStream()

    def rough_us(self, call: Call, copy: int) -> float:
        return self._busy.rough_us(lambda: call(copy))

    def launch_us(self, call: Call, copy: int) -> float:
        return self._busy.time_us(lambda: call(copy))

    def prepare(self, call: Call, copies: Sequence[int]) -> Sampler:
        def calls() -> None:
            for copy in copies:
                call(copy)

        graph = self._busy.capture(calls)
        return lambda: self._busy.time_us(graph.replay) / len(copies)

    def prepare_flushed(self, call: Call, next_copies: NextCopies, flush: Flush) -> Sampler:
        """No graph here: one call between two events, which adds the 1 to 2 us of an event to each."""

        def sample() -> float:
            copies = next_copies()
            total_us = 0.0
            for copy in copies:
                total_us += self._busy.time_us(lambda copy=copy: call(copy), lambda: flush(self._busy.handle))  # type: ignore[misc]
            return total_us / len(copies)

        return sample


class CuptiTimer:
    """Launches the calls one by one and adds up the kernel times that CUPTI recorded, without the gaps between."""

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
    """Nanoseconds in which one of the kernels ran at least, in the order of their starts.

    Not the sum of their times: a reduction that is there early waits beside what it depends on.
    """
    busy = until_ns = 0
    for kernel in kernels:
        busy += max(0, kernel.end_ns - max(kernel.start_ns, until_ns))
        until_ns = max(until_ns, kernel.end_ns)
    return busy


def make_timer(time_source: str) -> Timer:
    """The timer of that name, "cudagraph" or "cupti"."""
    timers: dict[str, Callable[[], Timer]] = {"cudagraph": CudaGraphTimer, "cupti": CuptiTimer}
    return timers[time_source]()
