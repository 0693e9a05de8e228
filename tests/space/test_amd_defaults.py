"""Tests of the default spaces of AMD's targets: each format has one, what is in them compiles, and pruning is quick."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import compile_all
from long_tests import spread

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.ops.op import get_op, op_names
from genkern.space.prune import prune
from genkern.space.rules.registry import rule_for
from genkern.space.space import load_space, read_space

ARCHS = ("gfx942", "gfx950", "gfx1201")
MI300X, RDNA4 = gpu_for_arch("gfx942"), gpu_for_arch("gfx1201")


def problem_of(op: str, size: tuple[int, int, int], arch: str) -> GemmProblem:
    types = (parse_dtype(name, arch).name for name in get_op(op).default_dtypes(arch))
    return GemmProblem(*size, op, *types)


def tile(m: int, n: int, k: int, split_k: int = 1, num_warps: int = 4, num_stages: int = 2, mfma: int = 16) -> Config:
    return Config(
        "tiled", m, n, k, 1, split_k, num_warps, num_stages, waves_per_eu=0, matrix_instr_nonkdim=mfma, kpack=1
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_every_format_has_a_space_that_is_pruned_quickly(arch: str) -> None:
    """Something is left for few rows, which have most configs, in under 1.5 s of processor time."""
    formats = {load_space(None, arch, op).families: op for op in op_names()}
    assert len(formats) > 3
    for op in formats.values() if arch != "gfx950" else ():
        problem = problem_of(op, (16, 2112, 7168), arch)
        start_s = time.process_time()
        assert prune(load_space(None, arch, op), problem, gpu_for_arch(arch)).kept
        assert time.process_time() - start_s < 1.5


BEST = [
    ("a8w8", "gfx942", (16, 128, 4096), tile(4, 16, 1024)),
    ("a8w8_blockscale", "gfx942", (4, 6144, 1536), tile(4, 16, 128, split_k=3)),
    ("a16w16", "gfx950", (8, 1280, 8192), tile(8, 64, 128, mfma=0)),
    ("a8w8_blockscale", "gfx950", (8, 512, 7168), tile(16, 16, 128, split_k=14, num_warps=1, num_stages=3)),
    ("a4w4_blockscale", "gfx950", (8, 512, 7168), tile(4, 16, 128, split_k=8)),
    ("a8w8_blockscale", "gfx1201", (1024, 1024, 4096), tile(64, 64, 128, num_stages=1)),
    ("a16w4", "gfx942", (8, 512, 7168), tile(8, 64, 128, split_k=28, mfma=0)),
    ("a16w8", "gfx1201", (16, 512, 7168), tile(16, 16, 256, split_k=14).with_values(cache_modifier=".cg")),
    ("fused_moe", "gfx950", (16, 512, 2048), tile(4, 64, 128, mfma=0)),
]


@pytest.mark.parametrize(("op", "arch", "size", "config"), BEST)
def test_tiles_that_others_found_best_are_there_and_compile(
    op: str, arch: str, size: tuple[int, int, int], config: Config, tmp_path: Path
) -> None:
    """Few rows, long blocks of K, splits that divide K's blocks, one warp: kept by pruning, and taken by Triton.

    One in four is compiled, all of them in `make test-long`.
    """
    problem = problem_of(op, size, arch)
    assert config in prune(load_space(None, arch, op), problem, gpu_for_arch(arch)).kept
    if (op, arch, size, config) in spread(BEST, 4):
        assert compile_all(tmp_path, problem, [config], arch)


def test_tiles_of_few_rows_are_for_amd(tmp_path: Path) -> None:
    """Elsewhere neither legality nor a space file takes a tile of 4 or 8 rows."""
    config, problem = Config("tiled", 8, 64, 64), GemmProblem(8, 4096, 4096)
    assert not legal(problem, config, MI300X)
    sixteen = replace(MI300X, has=replace(MI300X.has, tile_rows_min=16))
    assert "at least 16 rows" in legal(problem, config, sixteen)
    assert "at least 16 rows" in legal(problem, config, gpu_for_arch("sm_90"))
    shipped = Path(__file__).parents[2] / "genkern" / "space" / "spaces" / "nvidia_quick.yaml"
    text = shipped.read_text().replace("BLOCK_SIZE_M: [", "BLOCK_SIZE_M: [8, ", 1)
    (tmp_path / "few.yaml").write_text(text)
    with pytest.raises(InputError, match="BLOCK_SIZE_M: 8 is not from 16"):
        read_space(tmp_path / "few.yaml")


@pytest.mark.parametrize(
    ("name", "size", "config", "dropped"),
    [
        ("tile_far_over_problem", (1, 4096, 4096), tile(64, 64, 64), False),
        ("tile_far_over_problem", (1, 4096, 4096), tile(128, 64, 64), True),
        ("tile_far_over_problem", (64, 32, 4096), tile(64, 64, 64), True),
        ("few_rows_needless", (32, 4096, 4096), tile(8, 64, 64), False),
        ("few_rows_needless", (64, 128, 4096), tile(8, 16, 1024), False),
        ("few_rows_needless", (4096, 4096, 4096), tile(8, 64, 64), True),
        ("few_rows_needless", (4096, 4096, 4096), tile(16, 64, 64), False),
        ("lanes_without_loads", (4096, 4096, 4096), tile(16, 16, 16, num_warps=4), False),
        ("lanes_without_loads", (4096, 4096, 4096), tile(16, 16, 16, num_warps=8), True),
        ("split_k_many", (16, 4096, 4096), tile(16, 16, 64, split_k=16), False),
        ("split_k_many", (64, 4096, 4096), tile(16, 16, 64, split_k=16), True),
        ("split_k_many", (1024, 4096, 4096), tile(16, 64, 64, split_k=2), True),
        ("split_k_many", (1024, 4096, 4096), tile(16, 64, 64), False),
    ],
)
def test_rules(name: str, size: tuple[int, int, int], config: Config, dropped: bool) -> None:
    """What each drops on an MI300X, at its border."""
    assert rule_for(name, (1,))(GemmProblem(*size), config, MI300X) is dropped


def test_waves_of_32_lanes_share_a_unit_with_more_splits() -> None:
    """RDNA 4 has 64 CUs: 64 workgroups of 512 tiles in eight parts, where an MI300X would have 13."""
    problem, config = GemmProblem(16, 8192, 8192), tile(16, 16, 128, split_k=8)
    assert not rule_for("split_k_many", (1,))(problem, config, RDNA4)
    assert rule_for("split_k_many", (1,))(problem, config.with_values(SPLIT_K=16), RDNA4)
