"""Tests of genkern.search.cost_model.variants: tiles mix in the order, and a NVIDIA GPU's order is what its times
say.
"""

from __future__ import annotations

import numpy as np
import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.cost_model.predict import predicted_us, promising_first
from genkern.search.cost_model.variants import variants_octaves
from genkern.search.guided.model import ranked
from genkern.space.prune import prune
from genkern.space.space import load_space

PROBLEM = GemmProblem(64, 2112, 7168)


def test_variants_of_a_tile_count_longer() -> None:
    """The best of each tile not at all, other warps by how many are better, of a tile's warps all but the best one by
    as much; splits that share a binary alike.
    """
    configs = [
        Config("tiled", 16, 64, 128, num_warps=4),
        Config("tiled", 16, 64, 128, num_warps=2),
        Config("tiled", 16, 64, 128, num_warps=8),
        Config("tiled", 32, 64, 128),
        Config("tiled", 16, 64, 128, SPLIT_K=2),
        Config("tiled", 16, 64, 128, SPLIT_K=4),
        Config("tiled", 16, 64, 128, num_warps=4, num_stages=3),
        Config("tiled", 16, 64, 128, num_warps=2, num_stages=3),
    ]
    added = variants_octaves(configs, np.array([0.0, 2.0, 1.0, 3.0, 4.0, 5.0, 0.5, 2.5]))
    assert added[0] == added[3] == added[4] == added[5] == 0
    assert 0 < added[2] == pytest.approx(added[1] / 2)
    assert 0 < added[6] == pytest.approx(added[7] - added[1])


def test_tiles_mix_among_the_first() -> None:
    """The first 64 have more tiles than by time alone, the very first is the same, and both orders are one."""
    gpu = gpu_for_arch("gfx942")
    kept = prune(load_space(None, gpu.arch, PROBLEM.op), PROBLEM, gpu).kept[::7]
    order = promising_first(PROBLEM, kept, gpu)
    assert sorted(order) == sorted(kept)
    by_time = sorted(zip(predicted_us(PROBLEM, kept, gpu), kept, strict=True), key=lambda pair: pair[0])

    def tiles(configs: list[Config]) -> int:
        return len({(each.BLOCK_SIZE_M, each.BLOCK_SIZE_N, each.BLOCK_SIZE_K) for each in configs[:64]})

    assert tiles(order) > tiles([config for _, config in by_time])
    assert order[:200] == ranked(PROBLEM, kept, gpu)[:200]
