"""Tests of benchmarks.search.published_amd, with made-up files of winners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search import published_amd
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 1, "num_warps": 4}


def test_splits_count_by_what_a_program_has() -> None:
    """8 parts of 12 blocks are six of two, as 6 parts are."""
    problem = GemmProblem(16, 128, 12 * 256)
    eight, six = (Config("tiled", 16, 16, 256, SPLIT_K=split_k) for split_k in (8, 6))
    assert published_amd.tile_of(problem, eight) == published_amd.tile_of(problem, six) == (16, 16, 256, 2)
    order = [Config("tiled", 16, 16, 64), Config("tiled", 16, 32, 64), six]
    assert published_amd.place_of(problem, (16, 16, 256, 2), order) == 1.0
    assert published_amd.place_of(problem, (32, 16, 256, 2), order) is None


def test_what_is_kept_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One winner that the default space has, one that it has not, and one that no kernel of genkern's has."""
    rows = {
        "M_LEQ_16": {**TILE, "NUM_KSPLIT": 8},
        "M_LEQ_64": {**TILE, "BLOCK_SIZE_M": 1024},
        "any": {**TILE, "BLOCK_SIZE_M": 1},
    }
    (tmp_path / "gfx950-GEMM-A16W16-N=128-K=2880.json").write_text(json.dumps(rows))
    (tmp_path / "gfx950-BATCHED_GEMM-A16W16.json").write_text(json.dumps(rows))
    published_amd.main([str(tmp_path), "--each"])
    printed = capsys.readouterr().out
    assert "amd_published_kept: 0.333 (1 of 3)" in printed
    assert "gfx950 64x128x2880_a16w16_bf16_bf16_bf16_TN: 1024x16x256, 12 K-blocks a program" in printed
    assert "amd_formats_with_space: 12 of 12" in printed


def test_places_are_among_what_a_tuner_tries(tmp_path: Path) -> None:
    """vLLM's has no tiles of fewer rows than 16 nor of fewer columns than 32; AITER's may have any."""
    row = {**TILE, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "num_stages": 2}
    name = "N=1536,K=7168,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
    (tmp_path / name).write_text(json.dumps({"16": row}))
    ((_, _, winner, _),) = published_amd.winners(tmp_path / name)
    assert winner is not None
    sizes = (16, 32), (16, 16), (8, 32)
    assert [winner[1](Config("tiled", m, n, 128, num_warps=4)) for m, n in sizes] == [True, False, False]
    assert not winner[1](Config("tiled", 16, 32, 128, SPLIT_K=2, num_warps=4))
    assert not winner[1](Config("tiled", 16, 32, 128, num_warps=2))
