"""-o tuned_fmoe.csv as a user gives it, with predicted times."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command import run_here

from genkern.files.file_kind import read_results

SPACE = """archs: [gfx942]
ops: [fused_moe]
rules: []
families:
  - family: tiled
    BLOCK_SIZE_M: [16]
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
HEAD = "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,doweight_stage1"
ROW = "{},256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"


def test_a_list_of_experts_becomes_aiters_table(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for both stages; results of each stage are beside it, so that the same command goes on from there."""
    sizes, table = tmp_path / "untuned_fmoe.csv", tmp_path / "tuned_fmoe.csv"
    (tmp_path / "space.yaml").write_text(SPACE)
    sizes.write_text(f"{HEAD}\n{ROW.format(4)}\n")
    argv = ["-i", sizes, "-o", table, "--arch", "gfx942", "--profiler", "predict", "--cache_dir", cache_dir]
    argv += ["--space", tmp_path / "space.yaml", "--jobs", 1]
    ran = run_here(capsys, *argv)
    assert (ran.status, ran.err) == (0, "")
    (row,) = csv.DictReader(table.read_text().splitlines())
    stages = {row.problem.size: row for row in read_results(f"{table}.yaml")}
    assert (row["token"], row["us1"]) == ("4", str(stages["4x128x256"].duration_us))
    assert row["kernelName2"] == f"genkern_predicted_{stages['4x256x128'].config.name}"
    # The next list adds a row, and the table is no results file of genkern's, which the refusal says.
    sizes.write_text(f"{HEAD}\n{ROW.format(4)}\n{ROW.format(8)}\n")
    assert run_here(capsys, *argv).status == 0
    assert [row["token"] for row in csv.DictReader(table.read_text().splitlines())] == ["4", "8"]
    assert "tuned_fmoe.csv.yaml" in run_here(capsys, "status", table).refusal


def test_what_the_table_cannot_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before any work is done."""
    (tmp_path / "other.csv").write_text("M,N,K\n1,2,3\n")
    own = "op: fused_moe, stage: gate_up, activation: silu, experts: 8, top_k: 2"
    (tmp_path / "skewed.yaml").write_text(f"- {{M: 4, N: 128, K: 256, {own}, routing: skewed}}\n")
    (tmp_path / "half.yaml").write_text(f"- {{M: 4, N: 128, K: 256, {own}}}\n")
    argv = ["--arch", "gfx942", "--profiler", "predict"]
    for sizes, table, said in (
        ("skewed.yaml", "tuned_fmoe.csv", "skewed"),
        ("half.yaml", "tuned_fmoe.csv", "stage down"),
        ("half.yaml", "other.csv", ""),
    ):
        assert said in run_here(capsys, "-i", tmp_path / sizes, "-o", tmp_path / table, *argv).refusal
    assert not (tmp_path / "tuned_fmoe.csv").exists()
