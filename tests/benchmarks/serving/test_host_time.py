"""Tests of benchmarks/serving/host_time.py: which sizes, what a time is, and a whole run without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_bundle import pack_here, rows
from stand_ins import cpu_place

from benchmarks.serving import host_time
from benchmarks.serving.dispatching import native_available
from benchmarks.serving.host_time import (
    CTYPES,
    LIBRARY,
    LINEAR,
    LOOKUP,
    LT_ALGORITHM,
    MEMORY,
    MM,
    MM_OUT,
    NATIVE,
    SERVED,
    Case,
    Timed,
    cases,
    report,
)
from genkern.gemm.problem import GemmProblem
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle


@pytest.fixture(scope="module")
def bundle_file(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> str:
    return pack_here(tmp_path_factory.mktemp("host_time"), rows(), cache_dir)


@pytest.fixture(scope="module")
def bundle(bundle_file: str) -> Bundle:
    return read_bundle(bundle_file)


def winner(bundle: Bundle, m: int, n: int, us: float, family: str = "tiled") -> Result:
    """A winner for that size; of no family where the library wins."""
    first = bundle.winners[0]
    config = f"{family}_BM16_BN64_BK128_GM1_SK1_nW4_nS4" if family else "tiled_BM16_BN64_BK128_GM1_SK1_nW4_nS4"
    calls: tuple[PackedCall, ...] = first.calls if family else ()
    choice = "config" if family else "vendor"
    problem = GemmProblem(m, n, 512)
    return replace(
        first, problem=problem, kernel_name=config, choice=choice, duration_us=us, vendor_us=us + 1
    ).with_calls(calls)


def test_all_kernels_at_each_m(bundle: Bundle) -> None:
    """The fastest size of each, the nearest M where one won at none of these, and sizes of the library.

    Kernels of one family with another text count apart. Each comes once before any
    comes twice: a limit leaves none out.
    """
    first = winner(bundle, 16, 64, 7.0)
    found = cases(
        [
            *(winner(bundle, 16, 128, 9.0), winner(bundle, 16, 64, 5.0), winner(bundle, 64, 64, 6.0)),
            *(winner(bundle, 3, 64, 5.0, "gemv"), winner(bundle, 300, 64, 5.0, "gemv")),
            *(winner(bundle, 256, 64, 5.0), winner(bundle, 4096, 64, 50.0, "")),
            replace(first, kernel_name=f"{first.kernel_name}_semaphore_swapped"),
            replace(first, kernel_name=f"{first.kernel_name}_semaphore_swapped", duration_us=6.0),
            replace(winner(bundle, 1, 64, 1.0), problem=GemmProblem(1, 64, 64, bias=True)),
        ]
    )
    # 3 is nearer to 1 than 300 to 64, as factors.
    assert [(case.kernels, case.problem.M, case.problem.N) for case in found] == [
        ("gemv", 3, 64),
        (LIBRARY, 4096, 64),
        ("tiled", 16, 64),
        ("tiled_swapped", 16, 64),
        ("tiled", 64, 64),
    ]
    assert [case.device_us for case in found] == [5.0, 51.0, 5.0, 6.0, 6.0]


def test_a_loop_fits_the_devices_queue() -> None:
    """Fewer calls of what takes long, but some."""
    assert [host_time.calls_of(us) for us in (1.0, 100.0, 400.0, 10_000.0, float("inf"))] == [200, 200, 50, 20, 20]


def test_a_time_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's, without the wait for the device before and after it."""
    clock, log = [0.0], []
    monkeypatch.setattr("benchmarks.serving.host_time.time.perf_counter", lambda: clock[0])

    def call() -> None:
        log.append("call")
        clock[0] += 3e-6

    def synchronize() -> None:
        log.append("wait")
        clock[0] += 1.0

    assert host_time.loop_sampler(call, 4, synchronize)() == pytest.approx(3.0, abs=1e-6)
    assert log == ["wait", *["call"] * 4, "wait"]


def test_contenders_compute_the_same_and_parts_are_parts(bundle: Bundle) -> None:
    """Both ways of launching, three of PyTorch's, and the parts, of which the library's own have no memory."""
    place = cpu_place()
    names = {*([NATIVE] if native_available() else []), CTYPES, MM, MM_OUT, LINEAR, LOOKUP, SERVED, MEMORY}
    calls = host_time.contenders(place, bundle, Case("tiled", GemmProblem(100, 256, 512), 9.0))
    assert set(calls) == names
    assert calls[LOOKUP]() is None
    assert torch.equal(calls[MM](), calls[LINEAR]())  # type: ignore[arg-type]
    launched = place.gpu.driver.launched  # type: ignore[attr-defined]
    before = len(launched)
    calls[LOOKUP]()
    calls[MEMORY]()
    assert len(launched) == before
    calls[SERVED]()
    calls[CTYPES]()
    assert len({each.symbol for each in launched}) == 1
    assert len(launched) == before + 2
    by_library = host_time.contenders(place, bundle, Case(LIBRARY, GemmProblem(300, 256, 512), 9.0))
    assert set(by_library) == names - {MEMORY}
    assert torch.equal(by_library[CTYPES](), by_library[MM]())  # type: ignore[arg-type]


def test_the_worst_kernels_are_the_figure() -> None:
    """What the library serves is counted apart; without the C extension there is no figure."""
    times = {NATIVE: 4.0, CTYPES: 9.0, MM: 8.0, MM_OUT: 6.0, LINEAR: 7.0, LOOKUP: 1.0}
    found = [
        Timed("tiled", 16, 64, 64, times),
        Timed("gemv", 1, 64, 64, {**times, NATIVE: 6.0}),
        Timed(LIBRARY, 4096, 64, 64, {**times, NATIVE: 9.0}),
        Timed(LT_ALGORITHM, 4096, 64, 64, {**times, NATIVE: 7.0}),
    ]
    lines = report(found).splitlines()
    assert "| tiled | 16x64x64 | 4.00 | 9.00 | 8.00 | 6.00 | 7.00 | 1.00 | - | - | 0.50 |" in lines
    assert lines[-4:] == [
        "host_over_torch_mm_worst: 0.750",
        "host_over_torch_mm_algorithm_worst: 0.875",
        "host_over_linear_library_worst: 1.286",
        "host_over_torch_mm_library_worst: 1.125",
    ]
    del times[NATIVE]
    assert report([Timed("tiled", 1, 64, 64, times)]).splitlines()[-4] == "host_over_torch_mm_worst: -"
    assert report([])


def test_a_run_goes_on_from_what_it_has(bundle_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels have a line; what the file has is not timed again."""
    monkeypatch.setattr(host_time, "MOST_CALLS", 2)
    monkeypatch.setattr(host_time, "LEAST_CALLS", 2)
    argv = [bundle_file, "--rounds", "1", "-o", str(tmp_path / "found.jsonl")]
    text = host_time.run(cpu_place(), argv)
    assert all(f"| {kernels} |" in text for kernels in ("gemv", "skinny", "tiled", "tiled_tma", LIBRARY))
    monkeypatch.setattr(host_time, "timed", lambda *_: pytest.fail("timed again"))
    assert host_time.run(cpu_place(), argv) == text
