"""Tests of genkern.runtime.launch.native_call: what the C extension does of a call, and what it hands on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cublaslt import build
from fake_hipblaslt import build as build_hip
from hypothesis import given
from hypothesis import strategies as st
from launch_ways import needs_extension
from recording_gpu import RELAXED, FakeGpu, Launched
from small_bundle import winners_for

from genkern.errors import GenkernError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.table import Choice
from genkern.runtime.launch.algorithm_call import AlgorithmCall
from genkern.runtime.launch.native_call import Form, Prepared, native_call
from genkern.runtime.launch.parameters import Layout
from genkern.runtime.launch.prepared_call import PreparedCall
from genkern.timing.libraries import _BYTES, StoredAlgorithm

pytestmark = needs_extension
K = 512


@dataclass
class Case:
    """A call by the C extension, what it hands on, and what it is told of failures."""

    gpu: FakeGpu
    prepared: Prepared
    shape: tuple[int, int]
    given: int = 2
    handed_on: list[tuple[Any, ...]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        traits = Form(self.given, self.shape, (self.shape[1], 1), torch.bfloat16)
        native = native_call(self.gpu, self.prepared, traits, self.otherwise, self.failed)
        self.call: Callable[..., Any] = native.call
        self.stop: Callable[[], None] = native.stop

    def otherwise(self, *tensors: Any) -> str:
        self.handed_on.append(tensors)
        return "otherwise"

    def failed(self, error: GenkernError) -> None:
        self.failures.append(str(error))


def winner_of(bundle: Bundle, kernels: str) -> Result:
    """The first whose kernels are called after that."""
    winners = winners_for(bundle, "sm_90")
    return next(winner for winner in winners if traits_of(Config.parse(winner.config_name)).stem == kernels)


def case_of(bundle: Bundle, winner: Result, gpu: FakeGpu | None = None) -> Case:
    problem, gpu = winner.problem, gpu or FakeGpu()
    sizes = {"a": (problem.M, K), "b": (problem.N, K), "c": (problem.M, problem.N)}
    layouts = {name: Layout(*size, size[1], 2) for name, size in sizes.items()}
    choice = Choice("tuned", winner, winner.calls[0], bundle, exact=True)
    return Case(gpu, PreparedCall(gpu, choice, layouts, problem.M), (problem.M, problem.N))


def tensors_of(winner: Result) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(winner.problem.M, K).bfloat16(), torch.zeros(winner.problem.N, K).bfloat16()


def test_the_extension_launches_what_python_launches(bundle: Bundle) -> None:
    """Of every family: the same kernels with the same parameters, operands, output and workspaces alike."""
    for winner in winners_for(bundle, "sm_90"):
        if not winner.calls:
            continue
        case, tensors = case_of(bundle, winner), tensors_of(winner)
        out = case.call(*tensors)
        assert (tuple(out.shape), out.dtype) == (case.shape, torch.bfloat16)
        launched: list[Launched] = list(case.gpu.driver.launched)
        case.gpu.driver.launched.clear()
        x, weight = tensors
        assert case.prepared((x.data_ptr(), weight.data_ptr(), out.data_ptr()))  # type: ignore[operator]
        assert launched == case.gpu.driver.launched
        assert len(launched) == len(winner.calls[0].plan.launches)
        assert not case.handed_on


@pytest.mark.parametrize("kernels", ["tiled", "tiled_semaphore"])
@given(offsets=st.tuples(st.integers(0, 16), st.integers(0, 16)), other=st.booleans(), capturing=st.booleans())
def test_what_is_otherwise_is_handed_on(
    bundle: Bundle, kernels: str, offsets: tuple[int, int], other: bool, capturing: bool
) -> None:
    """Operands off 16 bytes, another device, a capture that needs workspace of its own: then nothing is launched."""
    winner = winner_of(bundle, kernels)
    case = case_of(bundle, winner)
    rooms = [torch.zeros(tensor.numel() + 16).bfloat16() for tensor in tensors_of(winner)]
    tensors = tuple(room[offset : room.numel() - 16 + offset] for room, offset in zip(rooms, offsets, strict=True))
    if other:
        case.gpu.driver.context += 1
    case.gpu.driver.capturing = 5 * capturing
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    expected = aligned and not other and not (capturing and any(case.prepared.memory_bytes))
    found = case.call(*tensors)
    assert bool(case.gpu.driver.launched) == expected
    assert case.handed_on == ([] if expected else [tensors])
    assert (isinstance(found, str) and found == "otherwise") != expected


def test_another_number_of_tensors_is_refused(bundle: Bundle) -> None:
    """Whoever calls knows what was prepared."""
    winner = winner_of(bundle, "tiled")
    with pytest.raises(TypeError, match="other tensors"):
        case_of(bundle, winner).call(*tensors_of(winner), None)
    with pytest.raises(AttributeError, match="data_ptr"):
        case_of(bundle, winner).call(1, 2)


def test_a_failure_is_told_once(bundle: Bundle) -> None:
    """The next calls are handed on; counters of that thread are taken anew, also by calls that did not fail."""
    winner = winner_of(bundle, "tiled_semaphore")
    gpu = FakeGpu()
    case, neighbour = case_of(bundle, winner, gpu), case_of(bundle, winner, gpu)
    tensors = tensors_of(winner)
    neighbour.call(*tensors)
    gpu.driver.fails = True
    assert case.call(*tensors) == "otherwise"
    gpu.driver.fails = False
    assert case.call(*tensors) == "otherwise"
    assert case.failures == ["a launch failed: CUDA error 719"]
    neighbour.call(*tensors)
    before, after = (set(launched.parameters) for launched in gpu.driver.launched)
    _, counters = gpu.workspaces.take(7, *case.prepared.memory_bytes)
    assert counters.to_bytes(8, "little") in after - before


def test_the_extension_launches_nothing_after_a_failed_launch(bundle: Bundle) -> None:
    """Whoever sees a launch of its own fail: nothing is launched here any more, and nobody is told again."""
    winner = winner_of(bundle, "tiled")
    case, tensors = case_of(bundle, winner), tensors_of(winner)
    case.call(*tensors)
    launched = len(case.gpu.driver.launched)
    case.stop()
    assert case.call(*tensors) == "otherwise"
    assert (case.handed_on, case.failures) == ([tensors], [])
    assert len(case.gpu.driver.launched) == launched


def test_threads_have_workspaces_of_their_own(bundle: Bundle) -> None:
    """On one stream; a thread's second call has what its first had."""
    winner = winner_of(bundle, "tiled_semaphore")
    case, tensors = case_of(bundle, winner), tensors_of(winner)
    barrier = threading.Barrier(3)
    found: list[tuple[int, int]] = []

    def work() -> None:
        for _ in range(2):
            case.call(*tensors)
        found.append(case.gpu.workspaces.take(7, *case.prepared.memory_bytes))
        barrier.wait(30)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters = [address.to_bytes(8, "little") for _, address in found]
    assert len(set(counters)) == 3
    launched = [set(each.parameters) for each in case.gpu.driver.launched]
    assert [sum(address in each for each in launched) for address in counters] == [2, 2, 2]


def test_without_memory_it_is_handed_on(bundle: Bundle) -> None:
    """Whoever makes the call otherwise says why."""
    winner = winner_of(bundle, "tiled_semaphore")
    case = case_of(bundle, winner)
    case.gpu.workspaces._memory = lambda size: (_ for _ in ()).throw(GenkernError("no memory"))
    assert case.call(*tensors_of(winner)) == "otherwise"
    assert not case.gpu.driver.launched


@pytest.mark.parametrize("name", ["cublaslt", "hipblaslt"])
def test_an_algorithm_of_a_library(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called with its matrices, workspace and each bias, in a mode in which a graph may be captured."""
    library = {"cublaslt": build, "hipblaslt": build_hip}[name](tmp_path)
    monkeypatch.setattr(f"genkern.runtime.backends.{name}_library.load", lambda: (library, ""))
    problem, gpu = GemmProblem(5, 7, 64, bias=True), FakeGpu()
    layouts = {
        "a": Layout(5, 64, 64, 2),
        "b": Layout(7, 64, 64, 2),
        "c": Layout(5, 7, 7, 2),
        "bias": Layout(1, 7, 7, 2),
    }
    modes: list[int] = []
    exchanged = gpu.driver._exchange
    monkeypatch.setattr(gpu.driver, "_exchange", lambda mode: modes.append(mode[0]) or exchanged(mode))  # type: ignore[func-returns-value]
    prepared = AlgorithmCall(gpu, problem, StoredAlgorithm(1, bytes(_BYTES[name]), name).name, layouts)
    made: list[torch.Tensor] = []
    monkeypatch.setattr(gpu, "empty", lambda shape, strides, dtype: made.append(aligned(5, 7)) or made[-1])
    case = Case(gpu, prepared, (5, 7), given=3)
    for number in range(3):
        x, weight, bias = (aligned(*size).copy_(torch.randint(-3, 4, size)) for size in ((5, 64), (7, 64), (7,)))
        out = case.call(x, weight, bias)
        assert out is made[number]
        assert torch.equal(out, torch.nn.functional.linear(x, weight, bias))
        assert prepared(tuple(each.data_ptr() for each in (x, weight, out, bias)))
    assert modes == [RELAXED, 0] * 3
    assert (case.handed_on, gpu.driver.mode) == ([], 0)
    odd = torch.zeros(5 * 64 + 8).bfloat16()[8:].view(5, 64)
    assert case.call(odd, weight, bias) == "otherwise"


def aligned(*shape: int) -> torch.Tensor:
    """Zeros at a multiple of 256 bytes."""
    room = torch.zeros(torch.Size(shape).numel() + 128).bfloat16()
    return room[-room.data_ptr() // 2 % 128 :][: torch.Size(shape).numel()].view(shape)
