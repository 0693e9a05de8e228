"""A GPU and a host with clocks of their own, behind as much of PyTorch as the measured process uses; and a GEMM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from genkern.profiling.checking.verdict import Subject
from genkern.profiling.loaded_gemm import Launchable
from genkern.timing.session import Session

CYCLES_PER_US = 2000.0
API_US = 4.0


class FakeGpu:
    """Kernels run one after another, each no sooner than the host launched it. Times are in microseconds.

    `host_us` is the host's clock, `free_us` when the GPU has done all it was given. `host_delay` says how much
    longer than usual the next call of the API takes. `fault` makes the next synchronization raise.
    """

    def __init__(self) -> None:
        self.host_us = 0.0
        self.free_us = 0.0
        self.host_delay: Callable[[], float] = lambda: 0.0
        self.fault = ""
        self.launched: list[str] = []
        self.swept = 0
        self._capturing: list[tuple[str, float]] | None = None
        cuda = SimpleNamespace(
            Stream=lambda: SimpleNamespace(cuda_stream=7),
            Event=lambda enable_timing: FakeEvent(self),
            CUDAGraph=lambda: FakeGraph(self),
            stream=self._stream,
            current_stream=lambda: SimpleNamespace(cuda_stream=7),
            synchronize=self.synchronize,
            is_initialized=lambda: True,
            empty_cache=lambda: None,
            get_device_name=lambda _index: "Fake GPU",
            get_device_properties=lambda _index: SimpleNamespace(uuid="00-11", L2_cache_size=1 << 20),
            _sleep=lambda cycles: self.run("sleep", cycles / CYCLES_PER_US),
        )
        self.torch = SimpleNamespace(
            cuda=cuda,
            empty=lambda *_args, **_kwargs: SimpleNamespace(zero_=self._sweep),
            int8="int8",
            version=SimpleNamespace(hip=None),
            __version__="fake",
        )

    def run(self, name: str, duration_us: float) -> None:
        """Launch a kernel that takes so long."""
        self.api()
        if self._capturing is not None:
            self._capturing.append((name, duration_us))
            return
        self.launched.append(name)
        self.free_us = max(self.free_us, self.host_us) + duration_us

    def api(self) -> None:
        self.host_us += API_US + self.host_delay()

    def synchronize(self) -> None:
        if self.fault:
            raise RuntimeError(self.fault)
        self.host_us = max(self.host_us, self.free_us)

    def start_capture(self) -> None:
        self._capturing = []

    def end_capture(self) -> list[tuple[str, float]]:
        captured, self._capturing = self._capturing, None
        assert captured is not None
        return captured

    @contextlib.contextmanager
    def _stream(self, _stream: Any) -> Iterator[None]:
        yield

    def _sweep(self) -> None:
        self.swept += 1
        self.run("sweep", 50.0)


class FakeGraph:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._kernels: list[tuple[str, float]] = []

    def capture_begin(self) -> None:
        self._gpu.start_capture()

    def capture_end(self) -> None:
        self._kernels = self._gpu.end_capture()

    def replay(self) -> None:
        self._gpu.api()
        for name, duration_us in self._kernels:
            self._gpu.launched.append(name)
            self._gpu.free_us = max(self._gpu.free_us, self._gpu.host_us) + duration_us


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at_us = 0.0

    def record(self) -> None:
        self._gpu.api()
        self.at_us = max(self._gpu.free_us, self._gpu.host_us)

    def query(self) -> bool:
        self._gpu.api()
        return self._gpu.host_us >= self.at_us

    def synchronize(self) -> None:
        self._gpu.synchronize()

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at_us - self.at_us) * 1e-3


def name_of(kind: str) -> str:
    """The name of a config that does what `kind` says (see FakeGemm)."""
    return f"{kind}_BM16_BN16_BK16_GM1_SK1_nW4_nS2"


class FakeGemm:
    """The family of a config says what it does: `us12` takes 12 us; others are `refused`, `fault` and `nograph`."""

    copies = 6
    units = 132
    refuse = ""

    def __init__(self, session: Session) -> None:
        if self.refuse:
            raise MemoryError(self.refuse)
        self.session = session
        self.gpu: FakeGpu = self.the_gpu
        self.operands: dict[str, Any] = {}
        self.module = SimpleNamespace(reference=None, vendor=lambda operands: self.vendor()(0))
        self.calls: list[tuple[str, int]] = []

    the_gpu: FakeGpu

    def bind(self, launchable: Launchable) -> Any:
        name = launchable.name.partition("_BM")[0]
        if name == "refused":
            raise RuntimeError("out of resource:\n  shared memory")

        def call(copy: int) -> None:
            self.calls.append((name, copy % self.copies))
            self.gpu.run(name, float(name[2:]) if name.startswith("us") else 10.0)
            if name == "fault":
                self.gpu.fault = "CUDA error: an illegal memory access was encountered"
            if name == "nograph" and len(self.calls) > 1:
                raise RuntimeError("operation not permitted when stream is capturing")

        return call

    def left_in_counters(self) -> str:
        return "leaves 1 in counters[0], not zero" if self.calls and self.calls[-1][0] == "leaves" else ""

    def faults_of_timed(self, calls: Any, copy: int, tell: Any) -> dict[str, str]:
        faults = {}
        for name, (_, timed) in calls.items():
            tell({"running": name})
            timed()
            if name.startswith("late"):
                faults[name] = f"as timed C is other, with copy {copy}"
        return faults

    def vendor(self) -> Any:
        return self.bind(Launchable("us20", (), ""))

    def subject(self, launchable: Launchable) -> Subject:
        call = self.bind(launchable)
        return Subject(lambda operands: call(0))
