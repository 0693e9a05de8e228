"""`genkern measure` as a user meets it, with predicted times where the tests have no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here

import genkern.cluster.work_folder
from genkern.cluster.work_folder import WorkFolder
from genkern.files.file_kind import read_results

PREDICT = "--profiler", "predict", "--compile"


def test_nothing_is_compiled(work: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The winners are those of the machine that compiled; the same command has nothing left to do."""
    command = "measure", work.path, *PREDICT, "--cache_dir", tmp_path / "cold"
    ran = run_here(capsys, *command)
    assert (ran.status, ran.err) == (0, "")
    assert "binaries: 0 compiled, " in ran.out
    assert "0 refused" in ran.out
    here = ["-i", work.sizes, "--space", work.own_space, "--search", "predicted:1", "--arch", "gfx942"]
    assert run_here(capsys, *here, "-o", tmp_path / "r.yaml", "--cache_dir", tmp_path / "cold", *PREDICT).status == 0
    measured, expected = (read_results(str(path)) for path in (work.results_of(None), tmp_path / "r.yaml"))
    assert [row.config for row in measured] == [row.config for row in expected]
    assert "3 of 3 sizes are in" in run_here(capsys, *command).out


def test_a_shard_has_its_sizes_only(work: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a results file of its own."""
    ran = run_here(capsys, "measure", work.path, *PREDICT, "--cache_dir", tmp_path, "--shard", "1/2")
    assert ran.status == 0
    assert [row.problem.M for row in read_results(str(work.results / "results_1_of_2.yaml"))] == [16, 48]


def test_more_is_compiled_only_where_it_may_be(
    work: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search that wants more is told that it is not there; nothing of that is kept for a run that may compile."""
    command = ["measure", work.path, *PREDICT, "--cache_dir", tmp_path, "--search", "predicted:2", "--shard", "1/3"]
    ran = run_here(capsys, *command)
    assert (ran.status, ran.err) == (0, "")
    assert "0 compiled, 1 from the cache, 1 refused" in ran.out
    assert "compile_failed" in ran.out
    ran = run_here(capsys, *command, "--may_compile", "--all", "--jobs", 1)
    assert "2 compiled, 1 from the cache, 0 refused" in ran.out


def test_a_machine_without_a_gpu_is_refused(work: WorkFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless predicted times are asked for."""
    assert "genkern measure needs a gfx942 GPU" in run_here(capsys, "measure", work.path).refusal
    assert (
        "--arch: the folder determines what is measured"
        in run_here(capsys, "measure", work.path, "--arch=sm_90").refusal
    )


def test_kernels_that_would_not_be_found_are_refused(
    work: WorkFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another genkern, or another Triton."""
    with monkeypatch.context() as patch:
        patch.setattr(genkern.cluster.work_folder, "generator", lambda: "another")
        assert "compiled by another version of genkern" in run_here(capsys, "measure", work.path, *PREDICT).refusal
    monkeypatch.setattr("genkern.cluster.measuring.versions", lambda: {"triton": "3.6.0"})
    refusal = run_here(capsys, "measure", work.path, *PREDICT).refusal
    assert "Triton 3.7.1, here 3.6.0" in refusal or "here 3.6.0" in refusal
    assert "--may_compile" in refusal
