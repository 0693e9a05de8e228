"""A place without a GPU for benchmarks of dispatched calls: launches are written down, and times are the host's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from recording_gpu import FakeGpu

from benchmarks.serving.dispatching import Place


class HostTimer:
    """As GraphTimer, of calls that are over when they return."""

    time_source = "host"

    def launch_us(self, call: Callable[[int], None], copy: int) -> float:
        return self.prepare(call, [copy])()

    def prepare(self, call: Callable[[int], None], copies: Sequence[int]) -> Callable[[], float]:
        def sample() -> float:
            started_s = time.perf_counter()
            for copy in copies:
                call(copy)
            return (time.perf_counter() - started_s) * 1e6 / len(copies)

        return sample


def cpu_place() -> Place:
    """An H200 that is none."""
    return Place("cpu", FakeGpu(), HostTimer(), lambda: None, lambda: None)  # type: ignore[arg-type]
