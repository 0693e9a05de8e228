"""`genkern lab` as a user meets it before there is a cluster; tests/cluster/test_on_dask.py has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_page import SIZES_LIST
from command import run_here

from genkern.cluster.lab import parse_lab


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cluster", "node:8786"), "give local:N, dask://HOST:PORT, tls://HOST:PORT or slurm:FILE"),
        (("--gpu-ids", "0"), "--gpu_ids: genkern lab says that itself"),
        (("--ngpus=2",), "--ngpus: genkern lab says that itself"),
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


def test_options_of_tuning_are_for_the_nodes() -> None:
    given = ["--cluster", "local:2", "--arch", "sm_90", "gfx942", "-i", "a.yaml", "b.yaml", "-o", "out", "--compare"]
    options = parse_lab([*given, "--search", "predicted:4"])
    assert options.tuning == ["--compare", "--search", "predicted:4"]
    assert (options.arch, options.gemm_size_file) == (["sm_90", "gfx942"], ["a.yaml", "b.yaml"])
