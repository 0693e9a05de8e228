"""Tests of profiling/timers.py on a simulated GPU and host."""

from __future__ import annotations

import random
import sys

import pytest
from fake_gpu import FakeGpu

from genkern.gemm.records import Dispatch
from genkern.profiling import timers
from genkern.profiling.cuda import icache
from genkern.profiling.timers import BusyStream, CuptiTimer, GraphTimer, busy_ns


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    return gpu


def test_a_graph_sample_is_the_time_of_one_call(gpu: FakeGpu) -> None:
    """The mean over the calls of the graph, all kernels of each call, no host time."""

    def call(copy: int) -> None:
        gpu.run("main", 3.0 + copy)
        gpu.run("reduce", 1.0)

    sample = GraphTimer("cudagraph").prepare(call, [0, 1, 2])
    assert sample() == pytest.approx(5.0)
    assert gpu.launched == ["sleep", *["main", "reduce"] * 3]


def test_a_slow_host_never_shows_in_a_sample(gpu: FakeGpu) -> None:
    """However long the host is held up between enqueueing calls, the sample is the GPU's time alone."""
    delays = random.Random(1)
    gpu.host_delay = lambda: delays.expovariate(1 / 300) if delays.random() < 0.3 else 0.0
    sample = GraphTimer("cudagraph").prepare(lambda _copy: gpu.run("main", 3.0), [0] * 4)
    assert [sample() for _ in range(200)] == pytest.approx([3.0] * 200)


def test_without_the_check_a_slow_host_would_show(gpu: FakeGpu) -> None:
    """The simulated host is slow enough to matter: a rough time has its delays in it."""
    gpu.host_delay = lambda: 300.0
    assert BusyStream().rough_us(lambda: gpu.run("main", 3.0)) > 300


def test_a_late_host_gets_a_longer_busy_spell_and_a_cold_cache(gpu: FakeGpu) -> None:
    """A sample that came too late is taken again behind twice the spell, with the cache swept first."""
    busy = BusyStream()
    # The spell is 50 us at first; the three calls after it take 3 x 44 us.
    gpu.host_delay = lambda: 40.0
    assert busy.time_us(lambda: gpu.run("main", 3.0)) == pytest.approx(3.0)
    assert busy.retries == 2
    assert gpu.launched == ["sleep", "main", "sweep", "sleep", "main", "sweep", "sleep", "main"]
    gpu.launched.clear()
    assert busy.time_us(lambda: gpu.run("main", 3.0)) == pytest.approx(3.0)
    assert gpu.launched == ["sleep", "main"]


def test_the_busy_spell_eases_when_the_host_recovers(gpu: FakeGpu) -> None:
    """One bad moment does not slow down the rest of the run."""
    busy = BusyStream()
    gpu.host_delay = lambda: 400.0
    busy.time_us(lambda: gpu.run("main", 3.0))
    gpu.host_delay = lambda: 0.0
    for _ in range(300):
        busy.time_us(lambda: gpu.run("main", 3.0))
    before_us = gpu.host_us
    busy.time_us(lambda: gpu.run("main", 3.0))
    assert gpu.host_us - before_us < 100


def test_a_host_that_is_always_late_still_gets_a_time(gpu: FakeGpu) -> None:
    """The shortest of the tries: lateness only adds."""
    delays = iter([50_000.0] * 1000)
    gpu.host_delay = lambda: next(delays)
    assert 3.0 <= BusyStream().time_us(lambda: gpu.run("main", 3.0)) < 200_000


def test_a_flush_comes_before_each_call_and_is_not_timed(gpu: FakeGpu) -> None:
    """The evicting kernel runs on the timed stream ahead of the busy spell; copies go on in rotation."""
    copies = iter([[0, 1], [2, 3]])
    seen: list[int] = []

    def call(copy: int) -> None:
        seen.append(copy)
        gpu.run("main", 3.0)

    sample = GraphTimer("cudagraph").prepare_flushed(
        call, lambda: next(copies), lambda _stream: gpu.run("evict", 200.0)
    )
    assert [sample(), sample()] == pytest.approx([3.0, 3.0])
    assert gpu.launched == ["evict", "sleep", "main"] * 4
    assert seen == [0, 1, 2, 3]


def test_a_failed_capture_ends_the_capture(gpu: FakeGpu) -> None:
    """What the call raises comes out, and the stream can be used again."""
    timer = GraphTimer("cudagraph")

    def refuse(_copy: int) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        timer.prepare(refuse, [0])
    assert timer.launch_us(lambda _copy: gpu.run("main", 2.0), 0) == pytest.approx(2.0)


class FakeTrace:
    """Stands in for CUPTI: the GPU's kernels as records."""

    gpu: FakeGpu
    lose = 0

    def clear(self) -> None:
        self.gpu.launched.clear()

    def collect(self) -> list[Dispatch]:
        kernels = self.gpu.launched[self.lose :]
        lasts_ns = {"main": 3000, "reduce": 500}
        # One after another, with gaps that do not count.
        return [Dispatch(name, i * 10**6, i * 10**6 + lasts_ns.get(name, 90_000)) for i, name in enumerate(kernels)]


def test_cupti_adds_up_the_kernels_of_a_call(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels of the call count, the evicting kernel does not, and a lost record is noticed."""
    monkeypatch.setattr(timers, "KernelTrace", FakeTrace)
    monkeypatch.setattr(FakeTrace, "gpu", gpu, raising=False)

    def call(_copy: int) -> None:
        gpu.run("main", 3.0)
        gpu.run("reduce", 0.5)

    timer = CuptiTimer()
    gpu.host_delay = lambda: 500.0
    assert timer.prepare(call, [0, 1, 2])() == pytest.approx(3.5)
    assert timer.launch_us(call, 0) == pytest.approx(3.5)
    flushed = timer.prepare_flushed(call, lambda: [0, 1], lambda _stream: gpu.run(icache.KERNEL, 200.0))
    assert flushed() == pytest.approx(3.5)
    assert timer.rough_us(call, 0) > 500
    FakeTrace.lose = 1
    with pytest.raises(RuntimeError, match=r"5 kernels .* 3 calls"):
        timer.prepare(call, [0, 1, 2])()
    FakeTrace.lose = 0


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([(0, 3000), (3200, 3700)], 3500),
        # A reduction that is there early, and one that ends first.
        ([(0, 3000), (1000, 3700)], 3700),
        ([(0, 3000), (1000, 2000), (2500, 3100)], 3100),
        ([(100, 200), (150, 200), (200, 250)], 150),
        ([], 0),
    ],
)
def test_time_beside_another_kernel_counts_once(spans: list[tuple[int, int]], busy: int) -> None:
    """Kernels that overlap take as long as the device is busy, not the sum of their times."""
    assert busy_ns([Dispatch("kernel", start, end) for start, end in spans]) == busy


def test_timers_have_names(gpu: FakeGpu) -> None:
    """The name that labels the numbers is the name by which the timer is asked for."""
    made = [timers.make_timer(name) for name in ("cudagraph", "cudaevents", "hipgraph", "hipevents")]
    assert [timer.time_source for timer in made] == ["cudagraph", "cudaevents", "hipgraph", "hipevents"]
    with pytest.raises(KeyError):
        timers.make_timer("rocprofv3")


@pytest.mark.parametrize("time_source", ["hipgraph", "hipevents", "cudaevents"])
def test_every_timer_of_calls_keeps_the_host_out(gpu: FakeGpu, time_source: str) -> None:
    """Graph or not, a sample is the GPU's own time, also on a host that is held up."""
    gpu.torch.version.hip = "7.0" if time_source.startswith("hip") else None
    delays = random.Random(2)
    gpu.host_delay = lambda: delays.expovariate(1 / 100) if delays.random() < 0.3 else 0.0
    timer = timers.make_timer(time_source)
    sample = timer.prepare(lambda _copy: gpu.run("main", 3.0), [0, 1])
    assert [sample() for _ in range(50)] == pytest.approx([3.0] * 50)
    assert timer.launch_us(lambda _copy: gpu.run("main", 7.0), 0) == pytest.approx(7.0)


def test_a_spell_takes_as_long_on_hip_whatever_it_counts(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's sleep counts ticks of 10 ns on gfx11: what is asked of it is measured, not known."""
    gpu.torch.version.hip = "7.0"
    monkeypatch.setattr(gpu.torch.cuda, "_sleep", lambda cycles: gpu.run("sleep", cycles / 100))
    busy = BusyStream()
    before_us = gpu.free_us
    assert busy.time_us(lambda: gpu.run("main", 3.0)) == pytest.approx(3.0)
    assert gpu.free_us - before_us == pytest.approx(50 + 3, abs=20)


def test_a_sweep_covers_the_last_level_cache_of_an_amd_gpu(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """L2_cache_size is that of one XCD there."""
    sizes: list[int] = []
    empty = gpu.torch.empty
    monkeypatch.setattr(gpu.torch, "empty", lambda size, **how: sizes.append(size) or empty())
    for hip in (None, "7.0"):
        gpu.torch.version.hip, gpu.host_delay = hip, lambda: 0.0
        busy = BusyStream()
        gpu.host_delay = lambda: 100.0
        busy.time_us(lambda: gpu.run("main", 3.0))
    assert sizes == [2 << 20, 512 << 20]
