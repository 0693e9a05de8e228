"""Tests of benchmarks.search.amd_rates, with a made-up file of winners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search import amd_rates
from genkern.gemm.gpus import gpu_for_arch

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4}


@pytest.mark.parametrize("split", [1, 2])
def test_a_winner_has_a_place_under_any_rates(tmp_path: Path, split: int) -> None:
    """From 0 to 1, by what the rates say; a folder that is left out has none. Its (N, K) alone says its fold."""
    rows = {"M_LEQ_16": {**TILE, "NUM_KSPLIT": split}}
    (tmp_path / "gfx942-GEMM-A8W8_BLOCKSCALE-N=512-K=512.json").write_text(json.dumps(rows))
    (size,) = amd_rates.read_sizes([tmp_path])
    shipped = gpu_for_arch("gfx942").rates
    assert shipped is not None
    rates = {name: getattr(shipped, name) for name in amd_rates.CHOSEN}
    (place,) = size.places(rates)
    assert 0 <= place < 1
    assert size.places({**rates, "gap_us": 1000.0}) != [place] or split == 1
    assert size.places(rates, without=tmp_path.name) == []
    assert amd_rates.fold_of(size) in range(amd_rates.FOLDS)
