"""Tests of benchmarks.search.amd_second_level, with a made-up file of winners and made-up binaries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search import amd_second_level
from genkern.gemm.records import Resources

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 1, "num_warps": 4}


def test_a_long_loop_puts_a_winner_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the winner's loop is by far the longest it is last; equal loops put it nowhere near."""
    (tmp_path / "gfx950-GEMM-A16W16-N=4096-K=4096.json").write_text(json.dumps({"M_LEQ_16": {**TILE, "NUM_KSPLIT": 1}}))
    ((_, problem), (tile,)) = next(iter(amd_second_level.winners_of([tmp_path]).items()))
    by_tile = amd_second_level.first_tiles(problem, "gfx950", 10_000)
    assert tile in by_tile
    loops = {config.name: 50_000 if each == tile else 10 for each, config in by_tile.items()}
    for of in (dict.fromkeys(loops, 10), loops):
        made = {name: Resources(loop_instructions=count, loop_matrix=4) for name, count in of.items()}
        monkeypatch.setattr(amd_second_level, "compiled", lambda *_, made=made: made)
        amd_second_level.main([str(tmp_path), "--tiles", "10000"])
        rows = {
            cells[1].strip(): cells[3].strip()
            for line in capsys.readouterr().out.splitlines()[2:]
            if (cells := line.split("|"))
        }
        assert rows["no binaries"] == rows["binaries"] != "-"
        assert (rows["loops, 1.0"] > "0.99") is (of is loops)
