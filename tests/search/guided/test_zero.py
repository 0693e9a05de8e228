"""Zero: the model's first choice that runs, by itself; a program calls it from a bundle that no GPU was needed for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from command import run_here
from kept_configs import kept_configs
from model_factory import model_file
from recording_gpu import FakeGpu

from genkern.files.file_kind import read_results
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.bundles.table import Table
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.search.guided.model import MODEL_VARIABLE, ranked
from genkern.search.guided.zero import Zero
from genkern.search.strategy import Compiled, Lost, Measured, Refused, Task, Unit

PROBLEM, GPU = GemmProblem(256, 1024, 2048), gpu_for_arch("sm_90")


def task() -> Task:
    return Task(PROBLEM, GPU, tuple(kept_configs(PROBLEM, "sm_90")[::41]), lambda unit: False)


def test_the_first_that_runs_is_all_that_is_asked_for() -> None:
    """One after another: what is refused or lost is followed by the next, what was measured by none."""
    first, second, third, *_ = ranked(PROBLEM, task().configs, GPU)
    strategy = Zero(task())
    assert strategy.ask(0) == []
    assert strategy.ask(9) == [Unit((first,))]
    assert strategy.ask(9) == []
    strategy.tell(Refused(Unit((first,)), (first,), Outcome.OVER_RESOURCES))
    assert strategy.ask(9) == [Unit((second,))]
    strategy.tell(Compiled(Unit((second,)), "", cached=False))
    strategy.tell(Lost(second, Outcome.CRASHED))
    assert strategy.ask(9) == [Unit((third,))]
    assert strategy.expected_loss() is None
    strategy.tell(Measured(third, 10.0))
    assert strategy.ask(9) == []


def test_it_says_what_such_choices_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At recorded sizes of its kind, where the model was judged."""
    monkeypatch.setenv(MODEL_VARIABLE, str(model_file(tmp_path)))
    strategy = Zero(task())
    (unit,) = strategy.ask(1)
    strategy.tell(Measured(unit.configs[0], 10.0))
    assert strategy.expected_loss() == 1.0


SPACE = """archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16, 32], BLOCK_SIZE_N: [32, 64], BLOCK_SIZE_K: [64], num_warps: [4],
     GROUP_SIZE_M: [1], SPLIT_K: [1], num_stages: [2]}
"""


def test_from_sizes_to_calls_without_a_measurement(
    tmp_path: Path,
    cache_dir: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command without a GPU takes what the model prefers; packed when asked for, it is called, and said."""
    monkeypatch.setenv(MODEL_VARIABLE, str(model_file(tmp_path)))
    gpu = FakeGpu()
    (tmp_path / "space.yaml").write_text(SPACE)
    size = ("-m", 64, "-n", 192, "-k", 512, "--arch", "sm_90", "--profiler", "predict")
    results, packed = tmp_path / "p.yaml", tmp_path / "p.genkern"
    cached = "--cache_dir", cache_dir, "--jobs", 1
    ran = run_here(capsys, *size, "--space", tmp_path / "space.yaml", "-o", results, *cached)
    assert ran.status == 0, ran
    assert "predicted 4" in ran.out
    assert "0.630 in geomean" in ran.out
    (row,) = read_results(str(results))
    assert (row.time_source, row.expected_loss, row.searched_share) == ("predicted", 1.0, None)
    assert run_here(capsys, "pack", results, "-o", packed, *cached).status == 2
    ran = run_here(capsys, "pack", results, "--predicted", "-o", packed, *cached)
    assert (ran.status, ran.err) == (0, "")
    assert "note: 1 winners are predicted, not measured" in ran.out
    assert "  predicted  " in run_here(capsys, "pack", "--list", packed).out
    bundle = read_bundle(str(packed))
    (winner,) = bundle.winners
    table = Table([bundle], gpu.identity)
    assert table.tuned(winner.problem) == [(64, f"{winner.config_name} (predicted)")]
    with caplog.at_level(logging.INFO, "genkern"):
        gemm = Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
        gemm(torch.randn(64, 512).bfloat16(), torch.randn(192, 512).bfloat16())
    launched = [each.symbol for each in gpu.driver.launched]
    assert launched == [launch.symbol for launch in winner.calls[0].plan.launches]
    assert "kernels of a16w16 that the cost model chose without a measurement: 1" in caplog.text
