"""`genkern lab` as a user meets it before there is a cluster; tests/cluster/test_on_dask.py has one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster_page import SIZES_LIST
from command import run_here

from genkern.cluster import lab
from genkern.cluster.lab import parse_lab
from genkern.journal.file_lock import sole_run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cluster", "node:8786"), "give local:N, dask://HOST:PORT, tls://HOST:PORT or slurm:FILE"),
        (("--gpu-ids", "0"), "--gpu_ids: genkern lab sets this option itself"),
        (("--ngpus=2",), "--ngpus: genkern lab sets this option itself"),
        (("--no-such-option",), "--no-such-option"),
        (("--arch", "sm_1"), "sm_1"),
        (("-i", "gone.yaml"), "gone.yaml: no such file"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anybody is asked."""
    (tmp_path / "sizes.yaml").write_text(SIZES_LIST)
    command = "lab", "--cluster", "dask://127.0.0.1:1", "--arch", "sm_90", "-i", tmp_path / "sizes.yaml", "-o", tmp_path
    assert said in run_here(capsys, *command, *options).refusal
    assert [path.name for path in tmp_path.iterdir()] == ["sizes.yaml"]


def test_results_that_another_run_writes_are_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, before anybody is asked: two runs would write over each other's rows."""
    (tmp_path / "sizes.yaml").write_text(SIZES_LIST)
    command = "lab", "--cluster", "dask://127.0.0.1:1", "--arch", "sm_90", "-i", tmp_path / "sizes.yaml", "-o", tmp_path
    with sole_run(str(tmp_path / "results_sm_90.yaml")):
        assert "another run is writing" in run_here(capsys, *command).refusal


def test_sizes_that_are_given_up_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the run has not ended well."""
    (tmp_path / "sizes.yaml").write_text(SIZES_LIST)
    monkeypatch.setattr(lab, "Nodes", lambda *of: SimpleNamespace(end=lambda: None))

    def lose_all(run: lab._Lab) -> None:
        while run.sizes.left["sm_90"]:
            run.sizes.given_up.append(("sm_90", run.sizes.left["sm_90"].popleft()))

    monkeypatch.setattr(lab._Lab, "work", lose_all)
    command = "lab", "--cluster", "dask://127.0.0.1:1", "--arch", "sm_90", "-i", tmp_path / "sizes.yaml", "-o", tmp_path
    ran = run_here(capsys, *command)
    assert ran.status == 1
    assert "sm_90 16x128x256: given up, its node was lost each time" in ran.out
    assert ran.out.count("given up") == 3


def test_options_of_tuning_are_for_the_nodes() -> None:
    given = ["--cluster", "local:2", "--arch", "sm_90", "gfx942", "-i", "a.yaml", "b.yaml", "-o", "out", "--compare"]
    options = parse_lab([*given, "--search", "predicted:4"])
    assert options.tuning == ["--compare", "--search", "predicted:4"]
    assert (options.arch, options.gemm_size_file) == (["sm_90", "gfx942"], ["a.yaml", "b.yaml"])
