"""Tests of profiling/server.py: how the library's algorithms race."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from fake_gpu import FakeGpu, name_of
from server_requests import LT, FakeAlgorithms, Parent, simulated

from genkern.profiling import server
from genkern.runtime.backends.cublaslt import BACKEND
from genkern.timing.libraries import StoredAlgorithm


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return simulated(monkeypatch)


def test_the_librarys_best_algorithms_race(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those within 1 % of its best, in the same rounds; others are launched twice, or sampled three times."""
    monkeypatch.setattr(FakeAlgorithms, "times", {LT[us]: us for us in (30, 14, 19, 15)})
    parent = Parent()
    parent.screen("us10")
    gpu.launched.clear()
    answer = parent.retime("us10", cublaslt=True)
    assert set(answer["samples_us"]) == {name_of("us10"), "vendor", LT[14]}
    assert answer["samples_us"][LT[14]] == pytest.approx([14.0] * 10)
    assert answer["errors"] == {}
    assert gpu.launched.count(LT[30]) == gpu.launched.count(LT[19]) == 2
    assert gpu.launched.count(LT[15]) == 2 + 3 * (100 // 15)
    # Whoever hangs or faults is known.
    assert {LT[us] for us in (30, 14, 19, 15)} | {"cublaslt"} <= set(parent.told)
    # Each copy of the weights as often as any other, as of everybody else.
    copies = [copy for name, copy in parent.gemm.calls if name == LT[14]]
    assert len(copies) > 12


def test_aiters_calls_race_beside_an_algorithm(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one screening; a library that is not there leaves the other's."""
    monkeypatch.setattr(FakeAlgorithms, "times", {LT[14]: 14.0})

    class FakeAiter(FakeAlgorithms):
        times = {"aiter ck": 14.1, "aiter cktile": 30.0}

    monkeypatch.setattr(server, "AiterFinder", FakeAiter)
    both = {name_of("us10"), "vendor", LT[14], "aiter ck"}
    request = {"candidates": [{"config": name_of("us10"), "binaries": ["us10"]}], "vendor": True}
    request |= {"min_rounds": 10, "max_rounds": 10, "seed": 0, "lt": ["cublaslt", "aiter"]}
    assert set(Parent().ask("retime", **request)["samples_us"]) == both
    monkeypatch.setattr(FakeAiter, "missing", "ModuleNotFoundError: aiter")
    assert set(Parent().ask("retime", **request)["samples_us"]) == both - {"aiter ck"}


def test_no_algorithm_races_where_pytorchs_own_call_is_the_best(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 20 us: one that takes 30 is not even timed again."""
    monkeypatch.setattr(FakeAlgorithms, "times", {LT[30]: 30.0})
    parent = Parent()
    assert set(parent.retime("us10", cublaslt=True)["samples_us"]) == {name_of("us10"), "vendor"}


@pytest.mark.parametrize("vendor", [True, False])
def test_algorithms_may_be_refused(vendor: bool, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the library does not run costs itself; where there is no library the finals are as they were."""
    monkeypatch.setattr(FakeAlgorithms, "broken", (9, 14))
    parent = Parent()
    answer = parent.retime("us10", vendor=vendor, cublaslt=True)
    assert LT[12] in answer["samples_us"]
    assert not {LT[9], LT[14]} & set(answer["samples_us"])
    monkeypatch.setattr(FakeAlgorithms, "missing", "this PyTorch is not built with CUDA")
    answer = parent.retime("us10", vendor=vendor, cublaslt=True)
    assert set(answer["samples_us"]) == {name_of("us10")} | ({"vendor"} if vendor else set())
    assert answer["errors"] == {}


def test_a_bug_in_an_algorithms_call_is_told(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in any other of ours: no time would be missing without a word."""

    def wrong(*_: object) -> Any:
        raise TypeError("17 arguments")

    monkeypatch.setattr(FakeAlgorithms, "call", wrong)
    assert Parent().retime("us10", cublaslt=True)["bug"] == "TypeError: 17 arguments"


@pytest.mark.parametrize(("racing", "most"), [(0, 1.02), (1, 1.08), (2, 1.12)])
def test_the_library_costs_about_a_tenth_of_a_size(
    racing: int, most: float, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In launches: of 32 algorithms, none to two of which race, beside 12 finalists of 1,390 configs.

    So many binaries has 16x4096x4096 in sm_90's own space (--explain), and more configs.
    """
    times = {
        StoredAlgorithm(131000, bytes([i] * 64)).name: 20.0 * (0.999 if i < racing else 1.5)
        for i in range(BACKEND.most)
    }
    monkeypatch.setattr(FakeAlgorithms, "times", times)
    launches = {}
    for cublaslt in (False, True):
        parent = Parent()
        gpu.launched.clear()
        for i in range(1390):
            parent.ask("screen", configs=[name_of(f"us{12 + i % 4}").replace("BM16", f"BM{i}")], binaries=[str(i)])
        finalists = [name_of("us12").replace("BM16", f"BM{i}") for i in range(12)]
        request = {"candidates": [{"config": name, "binaries": [name]} for name in finalists], "vendor": True}
        libraries = ["cublaslt"] if cublaslt else []
        answer = parent.ask("retime", **request, lt=libraries, min_rounds=10, max_rounds=60, seed=0)
        assert len(answer["samples_us"]) == 13 + racing * cublaslt
        launches[cublaslt] = len(gpu.launched)
    assert launches[False] * (most - 0.06) < launches[True] < launches[False] * most


def test_a_confirmation_is_among_those_that_are_named(gpu: FakeGpu) -> None:
    """The one algorithm, found by its name, with neither a screening nor an early end; PyTorch's own where asked."""
    parent = Parent()
    answer = parent.retime("us10", vendor=False, algorithms=[LT[12]], confirm=True)
    assert {name: len(us) for name, us in answer["samples_us"].items()} == {name_of("us10"): 20, LT[12]: 20}
    assert answer["samples_us"][LT[12]] == pytest.approx([12.0] * 20)
    assert not set(gpu.launched) & {LT[us] for us in (9, 14, 15, 19, 30)}
    assert set(parent.retime("us10", algorithms=[], confirm=True)["samples_us"]) == {name_of("us10"), "vendor"}


@pytest.mark.parametrize("us", [30, 50, 2_000])
def test_contenders_take_turns_in_a_confirmation(us: int, gpu: FakeGpu) -> None:
    """Long calls too, in rounds of single samples, each of which uses every copy of the weights once."""
    parent = Parent()
    names = [f"us{us}", f"us{us + 1}"]
    answer = parent.retime(*names, vendor=False, confirm=True)
    assert {name: len(each) for name, each in answer["samples_us"].items()} == {name_of(name): 20 for name in names}
    # A sample begins behind a kernel that waits; what is launched before the third only sees that it can be.
    samples = [[*calls] for waits, calls in groupby(gpu.launched, lambda name: name == "sleep") if not waits][3:]
    assert all(sample == sample[:1] * parent.gemm.copies for sample in samples)
    rounds = [(one[0], other[0]) for one, other in zip(samples[::2], samples[1::2], strict=True)]
    assert len(rounds) > 20
    assert {*rounds} == {(names[0], names[1]), (names[1], names[0])}


def test_an_algorithm_that_is_gone_costs_itself(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that this release of the library does not take."""
    monkeypatch.setattr(FakeAlgorithms, "broken", (12,))
    answer = Parent().retime("us10", vendor=False, algorithms=[LT[12]], confirm=True)
    assert set(answer["samples_us"]) == {name_of("us10")}
    assert set(answer["errors"]) == {LT[12]}
