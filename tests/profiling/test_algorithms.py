"""Tests of profiling/algorithms.py: the library's algorithms as calls, and which of them race."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cublaslt import build
from lt_problems import expected_of, operands_of, variable

from genkern.gemm.problem import GemmProblem
from genkern.profiling.algorithms import BEST, LONG_BEST, Algorithms, sampled_us, to_race, to_sample
from genkern.profiling.finals import SampleFailed
from genkern.runtime.backends import cublaslt, cublaslt_library
from genkern.runtime.backends.cublaslt_api import Api
from genkern.runtime.backends.lt_api import LtError
from genkern.timing.libraries import StoredAlgorithm, library_of

PROBLEM = GemmProblem(5, 7, 9, bias=True)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Api:
    return build(tmp_path_factory.mktemp("cublaslt"))


@pytest.fixture(autouse=True)
def on_the_host(fake: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library of the host, and a current stream."""
    cublaslt_library.load.cache_clear()
    monkeypatch.setattr(cublaslt_library, "find", lambda: (fake.path, ""))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    yield
    cublaslt_library.load.cache_clear()


class Gemm:
    """Three copies of operands, the weights of which differ."""

    copies = 3

    def __init__(self, problem: GemmProblem = PROBLEM) -> None:
        self.session = SimpleNamespace(problem=problem)
        self._operands = [operands_of(problem, seed=copy) for copy in range(self.copies)]
        self.operands = self._operands[0]

    def operands_of(self, copy: int) -> dict[str, torch.Tensor]:
        return {**self.operands, "b": self._operands[copy]["b"]}


def algorithms_of(gemm: Any) -> Algorithms:
    return Algorithms(gemm, device="cpu")


def test_every_algorithm_is_a_call_on_the_copies(fake: Api) -> None:
    """By its name in results; each copy of the weights in turn, on the current stream, and all compute the product."""
    gemm = Gemm()
    algorithms = algorithms_of(gemm)
    names = algorithms.names()
    assert len(set(names)) == len(names) == cublaslt.BACKEND.most
    assert {library_of(name) for name in names} == {"cublaslt"}
    for name in names:
        call = algorithms.call(name)
        for copy in (0, 1, 2, 4):
            gemm.operands["c"].fill_(float("nan"))
            call(copy)
            operands = gemm.operands_of(copy % 3)
            assert torch.equal(gemm.operands["c"], expected_of(PROBLEM, operands).bfloat16())
    assert variable(fake, "fake_stream", ctypes.c_void_p).value == 77


def test_an_algorithm_can_be_checked() -> None:
    """On operands that it is given, and not on slices; in a process that has not looked for it either."""
    name = algorithms_of(Gemm()).names()[3]
    subject = algorithms_of(Gemm()).subject(name)
    operands = operands_of(PROBLEM, seed=9)
    subject.launch(operands)
    assert torch.equal(operands["c"], expected_of(PROBLEM, operands).bfloat16())
    assert "contiguous" in subject.refuses(operands)


@pytest.mark.parametrize("kept", [StoredAlgorithm(120900, bytes(64)), StoredAlgorithm(131000, bytes(64))])
def test_an_algorithm_that_is_not_here_is_refused(kept: StoredAlgorithm) -> None:
    """Of another version, or of another product: nothing of it is launched."""
    with pytest.raises(LtError, match="algorithm"):
        algorithms_of(Gemm()).call(kept.name)


def test_what_the_library_does_not_compute_has_no_algorithms() -> None:
    """The reason is an error that the measured process takes for a refusal."""
    with pytest.raises(RuntimeError, match="no silu epilogue"):
        algorithms_of(Gemm(GemmProblem(5, 7, 9, activation="silu")))


def test_only_what_is_near_the_best_is_sampled() -> None:
    """By one launch, up to six."""
    assert to_sample({"a": 11.0, "b": 10.0, "c": 11.6, "d": 30.0}) == ["b", "a"]
    assert len(to_sample({str(i): 10.0 + i / 100 for i in range(9)})) == 6
    assert to_sample({}) == []


def test_the_best_two_race() -> None:
    """Those within 1 % of the library's best; where PyTorch's own call is better than that, nobody."""
    sampled = {"a": 10.05, "b": 10.0, "c": 10.08, "d": 10.2}
    assert to_race(sampled, None) == ["b", "a"]
    assert len(to_race(sampled, 12.0)) == BEST
    assert to_race(sampled, 9.91) == ["b"]
    assert to_race(sampled, 9.0) == []
    assert to_race({}, 9.0) == []


def test_of_long_calls_more_race() -> None:
    """Up to four within 3 %, since what is best at the power limit may not be so before."""
    sampled = {name: 200.0 + 2 * place for place, name in enumerate("abcde")}
    assert to_race(sampled, None) == ["a", "b", "c", "d"]
    assert len(to_race(sampled, None)) == LONG_BEST
    assert to_race({"a": 200.0, "b": 207.0}, None) == ["a"]


def drifting(order: list[str], name: str, *times_us: float) -> Callable[[], float]:
    """A sampler that says in `order` that it was called; its last time stays."""
    times = itertools.chain(times_us, itertools.repeat(times_us[-1]))

    def sample() -> float:
        order.append(name)
        return next(times)

    return sample


def test_algorithms_are_sampled_in_turns() -> None:
    """A few rounds of short calls, of which the median counts: the first is of another clock."""
    order: list[str] = []
    samplers = {"a": drifting(order, "a", 50.0, 10.0, 11.0), "b": drifting(order, "b", 12.0)}
    assert sampled_us(samplers, now=itertools.count().__next__) == {"a": 11.0, "b": 12.0}
    assert order == ["a", "b"] * 3


def test_long_calls_are_sampled_until_power_management_has_acted() -> None:
    """For a quarter of a second, by which time the one that was ahead no longer is."""
    order: list[str] = []
    samplers = {"a": drifting(order, "a", 190.0, 190.0, 190.0, 210.0), "b": drifting(order, "b", 200.0)}
    clock = itertools.count(0.0, 0.02)
    found = sampled_us(samplers, now=lambda: next(clock))
    assert found == {"a": 210.0, "b": 200.0}
    assert len(order) >= 2 * 0.25 / 0.02


def test_a_sample_that_fails_leaves_the_algorithm_out() -> None:
    """The others are sampled all the same."""

    def fails() -> float:
        raise SampleFailed("refused")

    assert sampled_us({"a": fails, "b": lambda: 5.0}) == {"b": 5.0}
    assert sampled_us({}) == {}
