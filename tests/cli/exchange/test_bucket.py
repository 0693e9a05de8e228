"""`genkern --bucket` as a user runs it, with predicted times."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command import run_here

from genkern.cli.bucket import ROWS

SPACE = """archs: [gfx942]
ops: [a16w16]
rules: []
families:
  - family: tiled
    BLOCK_SIZE_M: [16, 64]
    BLOCK_SIZE_N: [64]
    BLOCK_SIZE_K: [64]
    GROUP_SIZE_M: [1]
    SPLIT_K: [1]
    num_warps: [4]
    num_stages: [2]
    waves_per_eu: [0]
    matrix_instr_nonkdim: [16]
    kpack: [1]
    schedule_hint: [none]
"""
NAME = "gfx942-GEMM-A16W16-N=256-K=512.json"
NESTED = "gfx942/triton/gemm/gemm_a16w16/GEMM-A16W16-N=256-K=512.json"


def test_an_n_and_k_become_a_file(cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tuned for every M of the guide, a key for each; the default has the least loss over all of them.

    The same command again writes the same from what is there, or the older keys.
    """
    (tmp_path / "space.yaml").write_text(SPACE)
    target = [
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
        "--space",
        tmp_path / "space.yaml",
        "--jobs",
        "2",
    ]
    options = ["-n", 256, "-k", 512, "-o", tmp_path / "r.yaml", "--bucket", tmp_path / "b", "--cache_dir", cache_dir]
    assert "give --predicted" in run_here(capsys, *options, *target).refusal
    assert not (tmp_path / "b").exists()
    target.append("--predicted")
    ran = run_here(capsys, *options, *target)
    assert (ran.status, ran.err) == (0, "")
    text = (tmp_path / "b" / NESTED).read_text()
    assert list(json.loads(text)) == [*(f"M_LEQ_{M}" for M in ROWS), "any"]
    with (tmp_path / "r.yaml.candidates.csv").open(newline="") as file:
        times = [(row["config"], int(row["M"]), float(row["us"])) for row in csv.DictReader(file)]
    best = {M: min(us for _, m, us in times if m == M) for M in ROWS}
    product = dict.fromkeys({config for config, _, _ in times}, 1.0)
    for config, M, us in times:
        product[config] *= us / best[M]
    default = min(product, key=lambda config: product[config])
    rows = list(csv.DictReader((tmp_path / "b" / "losses.csv").read_text().splitlines()))
    assert rows[-1]["config"] == default
    assert float(rows[-1]["loss"]) == pytest.approx(product[default] ** (1 / len(ROWS)), abs=1e-3)
    assert f"{default}, on average {rows[-1]['loss']} times the best of 10 of 10 sizes" in ran.out
    assert run_here(capsys, *options, *target).status == 0
    assert (tmp_path / "b" / NESTED).read_text() == text
    assert run_here(capsys, *options, *target, "--bucket-keys", "flat").status == 0
    assert (tmp_path / "b" / NAME).read_text() == text
    assert run_here(capsys, *options, *target, "--bucket-keys", "named").status == 0
    assert "medium_M32" in json.loads((tmp_path / "b" / NAME).read_text())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-m", 16, "-n", 64, "-k", 64], "without -m"),
        (["-n", 64], "needs all of"),
        (["-n", 64, "-k", 64, "--explain"], "without --explain"),
        (["-n", 64, "-k", 64, "-o", "/dev/stdout"], "file as -o"),
        (["--benchmark", "-i", "x.yaml"], "give one of them"),
        (["-n", 64, "-k", 64, "--arch", "sm_90"], "AMD's GPUs"),
        (["-n", 64, "-k", 64, "--arch", "gfx942", "--op", "a16w8"], "AITER's kernels"),
        (["-n", 64, "-k", 64, "--arch", "gfx942", "--bucket", "full"], "not written by --bucket"),
        (["-n", 64, "-k", 64, "--arch", "gfx942", "--bucket", "full/file"], "is not a folder"),
        (["-n", 64, "-k", 64, "--bucket_keys", "many"], "invalid choice"),
    ],
)
def test_refusals(
    argv: list[object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any work is done: one line, status 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("someone's")
    assert said in run_here(capsys, "--bucket", "b", "--predicted", "--profiler", "predict", "--compile", *argv).refusal
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full"]
