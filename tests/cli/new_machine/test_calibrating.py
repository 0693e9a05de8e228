"""Tests of cli/new_machine/calibrating.py: the whole command on a machine whose GPU is a stand-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import run_here
from machines import machine
from tiny_space import TINY_AMD, tiny_command

from genkern.cli.new_machine import calibrating
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.search.cost_model.calibration_file import calibration_path, read_calibration
from genkern.search.cost_model.constants import constants_for, forget_calibrations, free_of, shipped_constants
from genkern.search.cost_model.fit import Fit

H200, MI300X = gpu_for_arch("sm_90"), gpu_for_arch("gfx942")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GENKERN_CACHE_DIR", str(tmp_path / "own"))
    forget_calibrations()
    yield
    forget_calibrations()


@pytest.mark.parametrize(
    ("gpu", "there", "options"),
    [
        (H200, {"gpus": 1}, []),
        # The last of an option counts.
        (MI300X, {"rocm": True}, ["--space", TINY_AMD, "--profiler", "hipgraph"]),
    ],
    ids=["without rates", "with rates"],
)
def test_kernels_are_measured_fitted_and_kept_if_they_serve(
    gpu: Gpu,
    there: dict[str, Any],
    options: list[object],
    tmp_path: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every kernel counts with its binary's needs; constants are kept only where they order better unseen sizes."""
    _, _, _, _, *space_and_cache = tiny_command(tmp_path, cache_dir, "[]")
    fitted = replace(shipped_constants(gpu), latency_us=2.5)
    monkeypatch.setattr(calibrating, "QUICK", ((16, 128, 256), (64, 256, 512)))
    monkeypatch.setattr(calibrating, "FRESH", ((32, 128, 256),))
    seen = []

    def fit(sizes: object, its: object, shipped: object) -> Fit:
        seen.append(sizes)
        assert (its, shipped) == (gpu, shipped_constants(gpu))
        return Fit(fitted, 0.1, 0.2, *held_out)

    monkeypatch.setattr(calibrating, "fit", fit)
    env = machine(tmp_path, **there, taken=str(tmp_path))
    argv = ["calibrate", "--quick", "--jobs", 1, "-o", tmp_path / "out", *space_and_cache, *options]
    held_out = (0.3, 0.2)
    ran = run_here(capsys, *argv, env=env)
    assert (ran.status, ran.err) == (0, "")
    assert "nothing is kept" in ran.out
    assert read_calibration(gpu) is None
    (sizes,) = seen
    assert {problem.size: len(timed) for problem, timed in sizes.items()} == {"16x128x256": 4, "64x256x512": 4}
    assert all(each.resources.registers for timed in sizes.values() for each in timed)
    # Again: what was measured is there, and this time the fit is better.
    held_out = (0.1, 0.2)
    ran = run_here(capsys, *argv, env=env)
    assert f"kept for {gpu.name}" in ran.out
    kept = read_calibration(gpu)
    assert kept is not None
    assert kept.constants == constants_for(gpu) == fitted
    orders = kept.fitted_on["orders"]
    assert list(orders) == ["16x128x256", "64x256x512", "32x128x256"]
    said = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert (said["gpu"], said["constants"]) == (gpu.name, free_of(fitted))
    # With what is kept it goes on; what is damaged is refused before anything is measured.
    assert run_here(capsys, *argv, env=env).status == 0
    calibration_path(gpu).write_text("{}")
    forget_calibrations()
    assert "move it away" in run_here(capsys, *argv, env=env).err
