"""Tests of genkern.runtime.launch.workspaces: how much is kept, who goes first, and streams whose handles come back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import pytest
import torch
from launch_ways import gpu as gpu
from launch_ways import is_native, needs_extension
from recording_gpu import FakeGpu
from test_native_call import case_of, tensors_of, winner_of

from genkern.errors import LaunchError
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.launch.prepared_call import workspace_for
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.launch.workspaces import MOST_BYTES, Workspaces, class_bytes
from genkern.runtime.model import ModelReport, WorkspaceReport

MIB = 2**20


@dataclass
class Device:
    """Memory that is there until it is given back, which waits for all that was launched."""

    there: dict[int, int] = field(default_factory=dict)
    launched: list[tuple[int, int]] = field(default_factory=list)
    waited: int = 0
    _next: int = 2**30

    def memory(self, size: int) -> int:
        address, self._next = self._next, self._next + size
        self.there[address] = size
        return address

    def release(self, address: int) -> None:
        del self.there[address]
        self.launched.clear()
        self.waited += 1


def test_sizes_are_of_few_classes() -> None:
    """Powers of two, and multiples of 16 MiB beyond: at most twice as much as is needed, and less of much."""
    assert [class_bytes(size) for size in (1, 2**16, 2**16 + 1, 2**24)] == [2**16, 2**16, 2**17, 2**24]
    assert class_bytes(2**24 + 1) == 2**25
    assert class_bytes(5 * 2**24 - 3) == 5 * 2**24
    assert len({class_bytes(size) for size in range(1, 2**25, 4099)}) <= 11


@pytest.mark.parametrize("most_mib", [8, 64, 256])
def test_four_threads_on_four_streams_with_growing_splits(most_mib: int) -> None:
    """Never more than the bound is kept, nobody has what another one has, and none has what was given back."""
    device = Device()
    workspaces = Workspaces(device.memory, device.release, most_bytes=most_mib * MIB)
    lock, barrier = threading.Lock(), threading.Barrier(4)
    held: dict[tuple[int, int, bool], tuple[int, int]] = {}
    refused = faults = 0

    def work(thread: int) -> None:
        nonlocal refused, faults
        random = Random(thread)
        barrier.wait(30)
        for split in (1, 2, 4, 8):
            for stream in random.sample((1, 2, 3, 4), 4):
                needed = split * MIB - random.randrange(2**16), 64 * split
                with lock:
                    before = {each for each in held if each[0] == thread}
                    found = workspaces.take(stream, *needed)
                    # What it has on other streams may have gone.
                    for each in before if device.waited else ():
                        if held[each][0] not in device.there:
                            del held[each]
                    kept = workspaces.kept()
                    faults += kept.bytes > most_mib * MIB or kept.bytes != sum(device.there.values())
                    if found is None:
                        refused += 1
                        continue
                    for is_counters, address in enumerate(found):
                        faults += device.there.get(address, 0) < needed[is_counters]
                        held[thread, stream, bool(is_counters)] = address, needed[is_counters]
                    faults += len({address for address, _ in held.values()}) != len(held)
        # What one has that ends is the next one's.
        barrier.wait(30)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == 0
    # 4 x 4 x 8 MiB are less than the default.
    assert (refused == 0) if most_mib == 256 else (refused > 0 or most_mib == 64)
    assert MOST_BYTES == 256 * MIB


@pytest.fixture
def streams(gpu: FakeGpu) -> Callable[[int], None]:
    """Sets the current stream of this thread."""
    current = threading.local()
    gpu.stream = lambda: current.stream  # type: ignore[method-assign]
    gpu.stream_of = lambda index: current.stream  # type: ignore[method-assign]
    return lambda stream: setattr(current, "stream", stream)


def test_calls_of_four_threads_on_four_streams(bundle: Bundle, gpu: FakeGpu, streams: Callable[[int], None]) -> None:
    """By the C extension and through ctypes: each launches with the workspace of its thread and stream, as it grows."""
    winner = winner_of(bundle, "tiled_semaphore")
    cases = []
    for split in (1, 4, 16):
        case = case_of(bundle, winner, gpu)
        case.prepared.memory_bytes = 2**16 * split, 64  # type: ignore[misc]
        cases.append(type(case)(gpu, case.prepared, case.shape))
    tensors, out = tensors_of(winner), torch.zeros(cases[0].shape).bfloat16()
    addresses = tuple(each.data_ptr() for each in (*tensors, out))
    barrier, found = threading.Barrier(4), []

    def work() -> None:
        mine = {}
        for case, stream in itertools.product(cases, (1, 2, 3, 4)):
            streams(stream)
            for _ in range(2):
                if is_native():
                    case.call(*tensors)
                else:
                    assert case.prepared(addresses)  # type: ignore[operator]
            mine[stream] = gpu.workspaces.take(stream, *case.prepared.memory_bytes)
        found.append(mine)
        barrier.wait(30)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pair for mine in found for pair in mine.values()}) == 16
    for stream in (1, 2, 3, 4):
        launched = [set(each.parameters) for each in gpu.driver.launched if each.stream == stream]
        assert len(launched) == 4 * 3 * 2 * len(winner.calls[0].plan.launches)
        for mine in found:
            workspace, counters = (address.to_bytes(8, "little") for address in mine[stream])
            # The last two calls had the largest; all had these counters.
            assert sum(workspace in each for each in launched) == 2
            assert sum(counters in each for each in launched) == 6
    assert not gpu.temporaries


def test_what_belongs_to_nobody_goes_first() -> None:
    """Then what the thread has on other streams, oldest first; another thread's never; and each only as it must."""
    device = Device()
    workspaces = Workspaces(device.memory, device.release, most_bytes=8 * MIB)
    done, go_on = threading.Event(), threading.Event()

    def other() -> None:
        assert workspaces.take(1, 2 * MIB, 0)
        done.set()
        go_on.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    done.wait(30)
    (others,) = device.there
    first = workspaces.take(1, 2 * MIB, 0)
    assert first is not None
    second = workspaces.take(2, MIB, 0)
    outgrown = workspaces.take(3, MIB, 0)
    third = workspaces.take(3, 2 * MIB, 0)
    assert second is not None
    assert outgrown is not None
    assert third is not None
    assert workspaces.kept().free_bytes == MIB
    fourth = workspaces.take(4, 2 * MIB, 0)
    assert fourth is not None
    assert set(device.there) == {others, second[0], third[0], fourth[0]}
    # All but the other thread's would not be enough: then nothing goes.
    assert workspaces.take(4, 8 * MIB, 0) is None
    assert set(device.there) == {others, second[0], third[0], fourth[0]}
    assert workspaces.kept().bytes == sum(device.there.values())
    go_on.set()
    thread.join()


def test_a_handle_that_comes_back_shares_with_nobody() -> None:
    """Of a stream that may end the number is asked at each call; what an ended one had is freed, which waits."""
    device, numbers = Device(), {9: 5}
    workspaces = Workspaces(device.memory, device.release, numbers.get)
    first = workspaces.take(9, MIB, 64)
    assert first is not None
    assert workspaces.take(9, MIB, 64) == first
    assert not workspaces.lasts(9)
    device.launched.append(first)
    # A thread that ended left something on it too.
    thread = threading.Thread(target=lambda: workspaces.take(9, MIB, 0))
    thread.start()
    thread.join()
    numbers[9] = 6
    again = workspaces.take(9, MIB, 64)
    assert again is not None
    assert not set(again) & set(first)
    assert (device.waited, device.launched) == (3, [])
    assert set(device.there) == set(again)
    # Nobody knows the next one: it has tensors of PyTorch's.
    del numbers[9]
    assert workspaces.take(9, MIB, 64) is None
    assert not device.there
    assert workspaces.kept().bytes == 0


@pytest.mark.parametrize(("handle", "number", "told"), [(0, 0, 0), (0x7F10, 35, 0), (0x7F10, 0x7F10, 42)])
def test_which_streams_may_end(handle: int, number: int, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not PyTorch's: of somebody else's its number of a stream is the handle."""
    gpu = TorchGpu(0)
    stream = SimpleNamespace(cuda_stream=handle, stream_id=number)
    monkeypatch.setattr(gpu, "_torch", SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda index: stream)))
    driver = SimpleNamespace(stream_number=lambda asked: 42 if asked == handle else None)
    monkeypatch.setitem(vars(gpu), "driver", driver)
    assert gpu._stream_number(handle) == told


@needs_extension
def test_a_call_on_a_stream_that_may_end_looks_each_time(bundle: Bundle) -> None:
    """The C extension keeps no workspace of it, and hands the call on."""
    winner, gpu = winner_of(bundle, "tiled_semaphore"), FakeGpu()
    gpu.driver.numbers[7] = 3
    case, tensors = case_of(bundle, winner, gpu), tensors_of(winner)
    for _ in range(2):
        assert case.call(*tensors) == "otherwise"
    gpu.driver.numbers[7] = 0
    case.call(*tensors)
    assert len(case.handed_on) == 2
    assert len(gpu.driver.launched) == len(winner.calls[0].plan.launches)


@pytest.mark.parametrize("capturing", [0, 5])
def test_beyond_the_bound_a_call_has_tensors(bundle: Bundle, gpu: FakeGpu, capturing: int) -> None:
    """Whose counters are zeroed by the call itself, in a graph by the graph; it is launched like others."""
    gpu.workspaces._most_bytes = 0
    gpu.driver.capturing = capturing
    with workspace_for(gpu, 7, 4096, 64) as (workspace, counters):
        made, zeroed = sorted(gpu.temporaries, key=lambda tensor: -tensor.numel())
        assert (workspace, counters) == (made.data_ptr(), zeroed.data_ptr())
        assert not zeroed.any()
    winner = winner_of(bundle, "tiled_semaphore")
    case = case_of(bundle, winner, gpu)
    addresses = (*(tensor.data_ptr() for tensor in tensors_of(winner)), 2**20)
    assert case.prepared(addresses)  # type: ignore[operator]
    assert len(gpu.temporaries) == 4
    assert gpu.workspaces.kept().bytes == 0


def test_counters_of_captures_are_bounded_too() -> None:
    """A graph whose counters would be more than is kept zeroes its own."""
    device = Device()
    workspaces = Workspaces(device.memory, device.release, most_bytes=4 * MIB)
    found = [workspaces.counters(1, capture, 2**14) for capture in range(1, 40)]
    assert sum(each is not None for each in found) == 16
    kept = workspaces.kept()
    assert (kept.captured_bytes, kept.bytes) == (2**18, 2**18)
    assert workspaces.take(1, 5 * MIB, 0) is None
    # They are never freed.
    assert sum(device.there.values()) == 2**18


def test_memory_that_is_not_there_is_not_counted() -> None:
    """Nor what a broken device does not take back."""

    def fails(of: int) -> int:
        raise LaunchError("out of memory")

    workspaces = Workspaces(fails, fails)
    with pytest.raises(LaunchError):
        workspaces.take(1, MIB, 0)
    assert workspaces.kept().bytes == 0
    workspaces._memory = Device().memory
    assert workspaces.take(1, 0, 64) is not None
    workspaces.drop(1)
    assert workspaces.kept().bytes == 0


def test_a_report_says_what_is_kept() -> None:
    """A list of the layers, as it was; as text a line each, and one for each GPU."""
    report = ModelReport([], [WorkspaceReport(0, 3 * 2**19, MOST_BYTES)])
    assert list(report) == []
    assert str(report) == "GPU 0: 1.5 of at most 256 MiB of workspaces"
