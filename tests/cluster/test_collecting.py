"""`genkern collect` as a user meets it."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from command import run_here

from genkern.cluster.work_folder import WorkFolder
from genkern.files.file_kind import read_results


@pytest.fixture
def shards(work: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> WorkFolder:
    """A folder of which two jobs of three have measured their sizes."""
    for shard in ("1/3", "3/3"):
        command = (
            "measure",
            work.path,
            "--profiler",
            "predict",
            "--compile",
            "--cache_dir",
            tmp_path / "cache",
            "--shard",
            shard,
        )
        assert run_here(capsys, *command).status == 0
    return work


def test_results_of_jobs_are_joined(shards: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row stays to the letter, below a comment with its file and host, also when it is joined again."""
    joined, again = tmp_path / "all.yaml", tmp_path / "again.yaml"
    ran = run_here(capsys, "collect", shards.path, "-o", joined)
    assert ran.status == 1
    assert "2 rows of 2 files" in ran.out
    assert "note: 1 of 3 sizes have no result yet" in ran.out
    rows = read_results(str(joined))
    assert [row.problem.M for row in rows] == [16, 48]
    lines = joined.read_text().splitlines(keepends=True)
    host = socket.gethostname()
    for line, origin, shard in zip(lines[2::2], lines[1::2], (1, 3), strict=True):
        assert origin == f"# from 'results_{shard}_of_3.yaml' on {host!r}\n"
        assert line in (shards.results / f"results_{shard}_of_3.yaml").read_text()
    assert run_here(capsys, "collect", joined, "-o", again).status == 0
    assert again.read_text() == joined.read_text()


def test_the_best_of_one_size_and_device_stays(
    shards: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proved kernel before a faster one that nobody checked, a measured time before a predicted one; a row of another
    device is another row.
    """
    text = (shards.results / "results_1_of_3.yaml").read_text()
    us = read_results(str(shards.results / "results_1_of_3.yaml"))[0].duration_us
    variants = {
        "slower": text.replace(f"'time_us': {us}", "'time_us': 99.0"),
        "proved": text.replace(f"'time_us': {us}", "'time_us': 60.0")
        .replace("'predicted'", "'rocprofv3'")
        .replace("'check': 'none'", "'check': 'gpu'"),
        "measured": text.replace(f"'time_us': {us}", "'time_us': 50.0").replace("'predicted'", "'rocprofv3'"),
        "other": text.replace("'compute_units': 304", "'compute_units': 38"),
        "another": re.sub(r"'device': '[^']*'", "'device': 'AMD Instinct MI300A'", text),
    }
    for name, changed in variants.items():
        assert changed != text
        (tmp_path / f"{name}.yaml").write_text(changed)
    files = [tmp_path / f"{name}.yaml" for name in variants]
    out = tmp_path / "all.yaml"
    ran = run_here(capsys, "collect", *files, shards.results / "results_1_of_3.yaml", "-o", out)
    assert ran.status == 0
    assert "3 further rows of the same sizes and devices are left out" in ran.out
    assert sorted(re.findall(r"# from '(\w+).yaml'", out.read_text())) == ["another", "other", "proved"]


def test_what_cannot_be_done_is_refused(work: WorkFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    for given, said in (
        ((work.path, "-o", "all.csv"), "name a YAML file"),
        ((work.path, "-o", tmp_path / "all.yaml"), "nothing to join: no results in 0 files"),
        ((tmp_path, "-o", tmp_path / "all.yaml"), "there is no manifest.json"),
        (("/nowhere.yaml", "-o", tmp_path / "all.yaml"), "/nowhere.yaml: no such file"),
        ((work.path, "-o", work.sizes), "--overwrite replaces"),
        ((work.path, "-o", work.sizes, "--overwrite"), "--overwrite replaces only such files"),
    ):
        before = work.sizes.read_bytes()
        assert said in run_here(capsys, "collect", *given).refusal
        assert work.sizes.read_bytes() == before
