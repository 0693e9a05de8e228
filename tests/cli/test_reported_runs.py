"""Runs of the command, and the reports of what they wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run_here
from machines import machine
from test_run import measured


def test_a_run_of_the_command_is_reported_with_its_timeline(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command itself writes: every stage lies between the start and the end of the run."""
    path = tmp_path / "r.yaml"
    env = machine(tmp_path, gpus=1)
    assert run_here(capsys, "-m", 64, "-n", 128, "-k", 256, "-o", path, *measured(cache_dir), env=env).status == 0
    assert run_here(capsys, "report", path, "-o", tmp_path / "r.json").status == 0
    record = json.loads((tmp_path / "r.json").read_text())
    (run,) = record["runs"]
    assert {"compile and screen", "re-time", "confirm"} <= {stage["stage"] for stage in run["stages"]}
    assert all(0 <= stage["begin_s"] <= stage["end_s"] <= run["wall_s"] + 0.01 for stage in run["stages"])
    assert record["sizes"][0]["source"]["as_measured"] is True
    (candidates,) = record["candidates"]
    assert record["sizes"][0]["config"] in candidates["config"]
