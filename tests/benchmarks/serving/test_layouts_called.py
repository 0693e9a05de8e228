"""Tests of benchmarks.serving.layouts_called: which sizes count as called, and a whole run without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from computing_gpu import computing_gpu, planned, planned_row
from stand_ins import cpu_place

from benchmarks.serving import layouts_called
from benchmarks.serving.dispatching import Place, Rotated, computed
from benchmarks.serving.layouts_called import Called, called, report, sizes_of
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import Bundle

PROBLEMS = [GemmProblem(96, 64, 64, row_major_a=a, row_major_b=b) for a in (True, False) for b in (True, False)]


def place_of(*problems: GemmProblem) -> tuple[Place, Bundle]:
    """An H200 that is none, whose kernels compute, and a bundle for it."""
    bundle, kernels = planned([planned_row(problem) for problem in problems])
    return replace(cpu_place(), gpu=computing_gpu(kernels)), bundle  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.serving.dispatching.ROTATING_MIB", 0)


@torch.no_grad()
def test_a_winner_of_the_layout_is_called() -> None:
    """A winner of the layout, nobody where the size has no row; what a winner cannot launch is not called."""
    place, bundle = place_of(*PROBLEMS)
    for problem in PROBLEMS:
        found = called(bundle, place, problem, 1, None)
        assert (found.has_winner, found.is_called, found.agrees) == (True, True, True)
        assert found.served.startswith("tiled_")
    found = called(bundle, place, replace(PROBLEMS[0], N=128), 1, None)
    assert (found.has_winner, found.is_called, found.agrees) == (False, False, True)
    place.gpu.driver.fails = True  # type: ignore[attr-defined]
    found = called(bundle, place, PROBLEMS[2], 1, None)
    assert (found.has_winner, found.is_called, found.agrees) == (True, False, True)


@torch.no_grad()
def test_what_comes_after_the_product() -> None:
    """A bias and an activation are part of the call and of PyTorch's."""
    place, bundle = place_of(PROBLEMS[0])
    problem = replace(PROBLEMS[3], bias=True, activation="silu")
    assert called(bundle, place, problem, 1, None).agrees
    rotated = Rotated(problem, place)
    assert (rotated.x.stride(), rotated.weights[0].stride()) == ((1, 96), (64, 1))
    bias = rotated.more["bias"]
    wanted = torch.nn.functional.silu(torch.addmm(bias, rotated.x, rotated.weights[0].mT))
    assert torch.equal(computed(rotated.x, rotated.weights[0], **rotated.more), wanted)


def test_a_report() -> None:
    """By layout, and as the figures' keys: a layout counts where all its winners are called."""
    one = Called("1x2x3 NN", "NN", "tiled", True, True, True, 8.0, 10.0)
    entries = [
        one,
        replace(one, layout="TN", is_called=False),
        replace(one, layout="TT", has_winner=False, is_called=False),
    ]
    lines = report(entries).splitlines()
    assert "| NN | 1 | 1 of 1 | 1.250 | 1.250 |" in lines
    assert "1x2x3 NN: not called by its winner" in lines
    assert lines[-3:] == ["layouts_called: 1 of 2", "layouts_called_over_library: 1.250", "layouts_called_least: 1.250"]
    assert "is WRONG" in report([replace(one, agrees=False)])
    assert report([]).splitlines()[-3] == "layouts_called: 0 of 0"


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of one 16-bit type, each once, and no more once they are kept."""
    monkeypatch.setattr("genkern.runtime.backends.cublaslt_library.load", lambda: (None, "there is none"))
    place, bundle = place_of(*PROBLEMS)
    monkeypatch.setattr(layouts_called, "read_bundle", lambda path: bundle)
    sizes = tmp_path / "sizes.yaml"
    others = [GemmProblem(8, 64, 64, dtype_c="fp32"), GemmProblem(8, 64, 64, "a8w8", "int8", "int8")]
    sizes.write_text("".join(map(size_line, [*PROBLEMS, *others, PROBLEMS[0]])))
    assert sizes_of([str(sizes)]) == PROBLEMS
    argv = [str(sizes), "--sizes", str(sizes), "--rounds", "1", "-o", str(tmp_path / "found.jsonl")]
    text = layouts_called.run(place, argv)
    assert "layouts_called: 4 of 4" in text
    assert "4 of 4 sizes on NVIDIA H200" in text
    monkeypatch.setattr(layouts_called, "called", lambda *_: pytest.fail("timed again"))
    assert "4 of 4 sizes" in layouts_called.run(place, argv)
