"""Whole runs of the command whose winners are checked, and some of whose configs are wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command import run_here
from machines import machine
from small_gemms import needs_interpreter
from test_run import entries, events, measured, predicted
from tiny_space import TINY_NVIDIA

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.prune import prune
from genkern.space.space import load_space


def test_a_wrong_winner_is_rejected_and_the_next_is_taken(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the GPU, asked or not: the fastest config multiplies wrongly, so that the second wins; the file says why.

    The third is checked as the runner-up. With --compare every finalist is checked. With --no_check nothing is, and
    the result says that.
    """
    space, gpu = load_space(str(TINY_NVIDIA), "sm_90", "a16w16"), gpu_for_arch("sm_90")
    wrong, second, *_ = (config.name for config in prune(space, GemmProblem(64, 128, 256), gpu).kept[1::3])
    log, results, profile = (tmp_path / name for name in ("log", "r.yaml", "candidates.csv"))
    env = machine(tmp_path, gpus=1, log=str(log), faster={wrong: 10.0, second: 20.0}, wrong=[wrong])
    options = ["-m", 64, "-n", 128, "-k", 256, "-o", results, "-o2", profile, *measured(cache_dir)]
    ran = run_here(capsys, *options, "-v", env=env)
    assert (ran.status, ran.err) == (0, "")
    (entry,) = entries(results)
    assert (entry["config"], entry["check"], entry["vendor_us"]) == (second, "gpu", pytest.approx(150, rel=1e-3))
    checked = [line for line in events(log) if line.startswith("check")]
    assert checked == [f"check {wrong}", f"check {second}", f"check {entry['runner_up']}"]
    with open(profile) as file:
        outcomes = {row["config"]: (row["outcome"], row["message"]) for row in csv.DictReader(file)}
    assert outcomes[wrong][0] == "wrong"
    assert outcomes[wrong][1] == "C[0, 0] is 0, expected 1"
    assert f"  wrong: {wrong}: C[0, 0] is 0, expected 1" in ran.out
    assert "error ratio" not in ran.out
    log.write_text("")
    ran = run_here(capsys, *options, "--compare", "--all", env=env)
    assert entries(results)[0]["config"] == second
    assert "error ratio  worst row" in ran.out
    checked = [line for line in events(log) if line.startswith("check")]
    assert len(checked) == len(set(checked)) > 3
    log.write_text("")
    ran = run_here(capsys, *options, "--no_check", "--all", env=env)
    (entry,) = entries(results)
    assert (entry["config"], entry["check"]) == (wrong, "none")
    assert "check" not in log.read_text()


def test_all_wrong_is_no_winner(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, the reason, and no entry for that size."""
    space, gpu = load_space(str(TINY_NVIDIA), "sm_90", "a16w16"), gpu_for_arch("sm_90")
    everyone = [config.name for config in prune(space, GemmProblem(64, 128, 256), gpu).kept]
    env = machine(tmp_path, gpus=1, wrong=everyone)
    results = tmp_path / "r.yaml"
    ran = run_here(capsys, "-m", 64, "-n", 128, "-k", 256, "-o", results, "--compare", *measured(cache_dir), env=env)
    assert ran.status == 1
    assert "64x128x256: no winner: no finalist ran and was correct" in ran.out
    assert not results.exists()


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
def test_compare_without_a_gpu_says_what_it_ran(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the interpreter, on a reduced size, which is named; the entry carries the check."""
    results = tmp_path / "r.yaml"
    ran = run_here(capsys, "-m", 33, "-n", 64, "-k", 4097, "-o", results, "--compare", *predicted(cache_dir))
    assert ran.status == 0
    assert "interpreter check ok in fp16 on " in ran.out
    assert "33x64x4097: " in ran.out
    (entry,) = entries(results)
    assert entry["check"] == "interpreter with fp16 operands"
    run_here(capsys, "-m", 32, "-n", 64, "-k", 64, "-o", results, *predicted(cache_dir))
    assert entries(results)[-1]["check"] == "none"
    assert 0 <= float(str(entry["error_ratio"])) <= 0.05
