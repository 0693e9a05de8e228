"""Tests of dispatched.py and dispatching.py: which sizes, what is counted, and a whole run without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_cublaslt import build
from recording_gpu import FakeGpu
from small_bundle import pack_here, rows
from stand_ins import cpu_place

from benchmarks.serving import dispatched
from benchmarks.serving.dispatched import (
    GENKERN,
    LIBRARY,
    LT,
    LT_ALGORITHM,
    TORCH,
    Timed,
    agree,
    chosen_sizes,
    lt_calls,
    report,
    served_by,
)
from benchmarks.serving.dispatching import Rotated, dispatcher, is_plain, key_lines, launched_by
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.bundles.table import Choice
from genkern.runtime.launch import launcher

TIMED = Timed(16, 64, 64, "tiled", "tuned", True, {GENKERN: 8.0, TORCH: 12.0, f"{LT} 0": 12.0, f"{LT} 3": 10.0})


@pytest.fixture(scope="module")
def bundle_file(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> str:
    return pack_here(tmp_path_factory.mktemp("dispatched"), rows(), cache_dir)


def sizes_file(path: Path, *sizes: tuple[int, int, int]) -> str:
    lines = [f"- {{'M': {m}, 'N': {n}, 'K': {k}, 'rowMajorA': 'T', 'rowMajorB': 'N'}}\n" for m, n, k in sizes]
    path.write_text("".join(lines))
    return str(path)


def test_sizes_are_drawn_once(tmp_path: Path) -> None:
    """All of the one, some of the other that are not among them, the same for one seed."""
    whole = sizes_file(tmp_path / "whole.yaml", (1, 64, 64), (2, 64, 64))
    more = sizes_file(tmp_path / "more.yaml", *((m, 64, 64) for m in range(2, 12)))
    found = chosen_sizes([whole], [more, more], 4, 1)
    assert len(found) == len(set(found)) == 6
    assert {1, 2} <= {problem.M for problem in found}
    assert found == chosen_sizes([whole], [more], 4, 1) != chosen_sizes([whole], [more], 4, 2)
    assert len(chosen_sizes([whole], [more], 99, 1)) == 11


def test_what_f_linear_computes_is_plain() -> None:
    """Other types, layouts and what follows the product are not."""
    assert is_plain(GemmProblem(1, 2, 3))
    assert is_plain(GemmProblem(1, 2, 3, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"))
    for more in ({"bias": True}, {"row_major_b": True}, {"dtype_c": "fp32"}, {"activation": "relu"}):
        assert not is_plain(GemmProblem(1, 2, 3, **more))  # type: ignore[arg-type]


def test_ratios_are_the_librarys_time_over_ours() -> None:
    """The best of cuBLASLt is the least of its algorithms; a size without any counts for torch.mm alone."""
    assert (TIMED.over_torch, TIMED.over_lt) == (1.5, 1.25)
    alone = Timed(1, 64, 64, "the library", "not tuned", False, {GENKERN: 10.0, TORCH: 9.0})
    assert alone.over_lt is None
    lines = report([TIMED, alone]).splitlines()
    assert "| 16 | 1 | 1.500 | 1.500 | 1.250 | 1.250 |" in lines
    assert "| a winner serves | 1 | 1.500 | 1.500 | 1.250 | 1.250 |" in lines
    assert "1x64x64: the library is WRONG" in lines
    assert lines[-3:] == [
        f"dispatched_over_torch: {(1.5 * 0.9) ** 0.5:.3f}",
        "dispatched_over_lt: 1.250",
        "dispatched_least_over_lt: 1.250",
    ]
    assert report([]).splitlines()[-1] == "dispatched_least_over_lt: -"
    assert key_lines({"a": 2.0, "b": None}, ".1f") == "a: 2.0\nb: -"


def test_outputs_are_compared() -> None:
    """One element that is off is found; another order of additions is not."""
    x, weight = torch.randn(8, 256).bfloat16(), torch.randn(16, 256).bfloat16()
    c = x @ weight.T
    assert agree((x.double() @ weight.double().T).bfloat16(), c, x, weight)
    wrong = c.clone()
    wrong[3, 5] += 8
    assert not agree(wrong, c, x, weight)


def test_the_table_says_whether_a_winner_serves() -> None:
    """Where no winner does, whether it is PyTorch's call or an algorithm that won."""
    assert served_by(Choice("not tuned")) == LIBRARY
    assert served_by(Choice("as fast", exact=True, algorithm=f"cublaslt 131000 {'0' * 128}")) == LT_ALGORITHM


def test_weights_rotate() -> None:
    """Copies together exceed what they are to rotate through, and calls go through them."""
    rotated = Rotated(GemmProblem(2, 256, 512), cpu_place(), rotating_mib=1.0)
    assert rotated.copies == 4
    seen: list[int] = []
    call = rotated.by(lambda x, weight: seen.append(weight.data_ptr()))
    for copy in range(rotated.copies):
        call(copy)
    assert len(set(seen)) == 4
    assert all(torch.equal(weight, rotated.weights[0]) for weight in rotated.weights)


def test_what_the_heuristic_returns_is_raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it, all computing the same product with the copy that they are given."""
    fake = build(tmp_path)
    monkeypatch.setattr("genkern.runtime.backends.cublaslt_library.load", lambda: (fake, ""))
    rotated = Rotated(GemmProblem(5, 32, 64), cpu_place(), rotating_mib=0.01)
    made: list[torch.Tensor] = []
    new_empty = rotated.x.new_empty
    monkeypatch.setattr(rotated, "x", rotated.x.clone())
    monkeypatch.setattr(rotated.x, "new_empty", lambda shape: made.append(new_empty(shape)) or made[0], raising=False)
    calls = lt_calls(rotated, torch.empty(64 << 20, dtype=torch.uint8), 3)
    assert len(calls) == 3
    rotated.weights[2].mul_(2)
    for call in calls.values():
        made[0].zero_()
        call(2)
        assert agree(made[0], rotated.x @ rotated.weights[2].T, rotated.x, rotated.weights[2])


def test_launches_by_both_ways(bundle_file: str) -> None:
    """Whichever was settled by the first call stays, and both launch the same."""
    place, native = cpu_place(), launcher._native
    bundle = read_bundle(bundle_file)
    gemms = {by_native: dispatcher(place.context([bundle])) for by_native in (True, False)}
    rotated = Rotated(GemmProblem(100, 256, 512), place, rotating_mib=0)
    for by_native, gemm in gemms.items():
        with launched_by(by_native):
            assert launcher._native is (native if by_native else None)
            gemm(rotated.x, rotated.weights[0])
        gemm(rotated.x, rotated.weights[0])
    assert launcher._native is native
    assert isinstance(place.gpu, FakeGpu)
    assert len({launched.symbol for launched in place.gpu.driver.launched}) == 1
    assert len(place.gpu.driver.launched) == 4


def test_a_run_goes_on_from_what_it_has(bundle_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a limit ended has a report, and the next times what is missing; another bundle would be timed anew."""
    monkeypatch.setattr("benchmarks.serving.dispatching.ROTATING_MIB", 0)
    monkeypatch.setattr("genkern.runtime.backends.cublaslt_library.load", lambda: (None, "there is none"))
    output = tmp_path / "found.jsonl"
    sizes = sizes_file(tmp_path / "sizes.yaml", (100, 256, 512), (300, 256, 512), (7, 96, 64))
    argv = [bundle_file, "--sizes", sizes, "--rounds", "1", "-o", str(output)]
    assert "0 of 3 sizes" in dispatched.run(cpu_place(), [*argv, "--limit_s", "0"])
    text = dispatched.run(cpu_place(), argv)
    assert "3 of 3 sizes on NVIDIA H200" in text
    assert "dispatched_over_torch: " in text
    monkeypatch.setattr(dispatched, "timed", lambda *_: pytest.fail("timed again"))
    assert "3 of 3 sizes" in dispatched.run(cpu_place(), argv)
    assert len(output.read_text().splitlines()) == 3
