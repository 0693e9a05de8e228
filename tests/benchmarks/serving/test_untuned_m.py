"""Tests of benchmarks/serving/untuned_m.py: what is drawn, how rules are judged, and a whole run without a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_bundle import pack_here, problem_of, row, rows
from small_gemms import TILED
from stand_ins import cpu_place

from benchmarks.serving import untuned_m
from benchmarks.serving.untuned_m import (
    RULES,
    TORCH,
    TUNED,
    Neighbours,
    Timed,
    called,
    drawn,
    judge,
    only,
    parse,
    report,
)
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.bundles.untuned_m import Option


@pytest.fixture(scope="module")
def bundle_file(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> str:
    return pack_here(tmp_path_factory.mktemp("untuned"), rows(), cache_dir)


@pytest.fixture(scope="module")
def bundle(bundle_file: str) -> Bundle:
    return read_bundle(bundle_file)


def winners(bundle: Bundle, n: int, *ms: int) -> list[Result]:
    """Winners of one N and K for these M."""
    return [replace(bundle.winners[0], problem=GemmProblem(m, n, 512)) for m in ms]


def options(bundle: Bundle, *ms: int) -> list[Option]:
    return [Option(each, each.calls[0]) for each in winners(bundle, 256, *ms)]


def test_m_is_drawn_between_tuned_m(bundle: Bundle) -> None:
    """Distinct sizes, none of them tuned, of every N that has a gap; small and large M alike."""
    here = [*winners(bundle, 64, 1, 16, 4096), *winners(bundle, 128, 16, 64), *winners(bundle, 192, 7)]
    here += winners(bundle, 256, 8, 9)
    found = drawn(here, 100, 3)
    assert len(set(found)) == 100
    assert {problem.N for problem in found} == {64, 128}
    tuned = {each.problem for each in here}
    assert not tuned & set(found)
    assert all(16 < problem.M < 64 for problem in found if problem.N == 128)
    of_first = [problem.M for problem in found if problem.N == 64]
    assert min(of_first) < 16 < 256 < max(of_first) < 4096
    assert drawn(here, 10, 3) == found[:10] != drawn(here, 10, 4)
    assert drawn(winners(bundle, 256, 8, 9), 5, 0) == []
    assert {problem.M for problem in drawn(winners(bundle, 256, 8, 10), 5, 0)} == {9}


def test_rules_are_asked_as_the_dispatcher_asks(bundle: Bundle) -> None:
    """Of the winners of both neighbours; where the library won, or where kernels do not reach, it is the library."""
    neighbours = Neighbours(cpu_place(), bundle)
    assert [each.m for each in neighbours.of(replace(problem_of(0), M=50))] == [8, 100]
    assert [each.m for each in neighbours.of(replace(problem_of(0), M=200))] == [100, 300]
    assert neighbours.of(problem_of(0)) == []
    there = neighbours.of(replace(problem_of(0), M=200))
    assert called(only(100), 200, there) == "100"
    assert called(only(300), 200, there) == called(only(7), 200, there) == TORCH


def test_rules_are_judged_by_the_same_times(bundle: Bundle) -> None:
    """Each by its own choice: over what tuning gave, over the best that there was, and over torch.mm."""
    first = Timed(20, 256, 512, "bf16", {TORCH: 12.0, "16": 10.0, "64": 16.0, TUNED: 8.0})
    second = Timed(60, 256, 512, "bf16", {TORCH: 12.0, "16": 20.0, "64": 10.0})
    found = [(each, options(bundle, 16, 64)) for each in (first, second)]
    larger, near = judge(RULES["next_larger"], found), judge(RULES["nearest"], found)
    assert (larger.over_tuned, larger.over_best, larger.over_torch) == ([0.5], [10 / 16, 1.0], [0.75, 1.2])
    assert larger.behind == [(0.75, "20x256x512", "64")]
    assert (near.over_tuned, near.over_best, near.over_torch, near.behind) == ([0.8], [1.0, 1.0], [1.2, 1.2], [])
    lines = report(found, "next_larger").splitlines()
    assert lines[-3::2] == ["untuned_m_regret: 0.500", "untuned_m_least: 0.750"]
    assert any(line.startswith("| nearest | 0.800 | 0.800 | 1.000 | 1.200 | 1.200 | 0 |") for line in lines)
    assert any(line.startswith("| always right | 0.800 | 0.800 | 1.000 | 1.200 | 1.200 | 0 |") for line in lines)
    assert report(found, "nearest").splitlines()[-2:] == ["untuned_m_over_torch: 1.200", "untuned_m_least: 1.200"]
    assert report([], "nearest").splitlines()[-1] == "untuned_m_least: -"


def test_a_sample_is_written_as_sizes(
    bundle_file: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones of the draw, with their types, as genkern reads them; no GPU is asked for."""
    path = tmp_path / "sample.yaml"
    argv = ["untuned_m.py", bundle_file, "--seed", "5", "--sample", "4", "--write_sizes", str(path)]
    monkeypatch.setattr(sys, "argv", argv)
    untuned_m.main()
    assert list(read_sizes(str(path), GemmDefaults(), None).problems) == drawn(bundle.winners, 50, 5)[:4]


def test_a_run_goes_on_from_what_it_has(
    bundle_file: str, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All options of each size are timed once; of what is tuned later, that size anew."""
    monkeypatch.setattr("benchmarks.serving.dispatching.ROTATING_MIB", 0)
    place, output = cpu_place(), tmp_path / "found.jsonl"
    argv = [bundle_file, "--count", "6", "--rounds", "1", "-o", str(output)]
    text = untuned_m.run(place, parse(argv))
    assert f"6 of 6 sizes on {place}" in text
    assert "untuned_m_regret: -" in text
    problem = drawn(read_bundle(bundle_file).winners, 1, 0)[0]
    tuned = pack_here(tmp_path, [row(problem, TILED)], cache_dir)
    text = untuned_m.run(place, parse([*argv, "--tuned", tuned]))
    assert "6 sizes, 1 of them tuned" in text
    assert "untuned_m_regret: -" not in text
    monkeypatch.setattr(untuned_m, "timed", lambda *_: pytest.fail("timed again"))
    assert untuned_m.run(place, parse([*argv, "--tuned", tuned])) == text
    assert len(output.read_text().splitlines()) == 7
