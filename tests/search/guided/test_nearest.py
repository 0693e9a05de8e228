"""Nearest: winners of alike problems, those of the nearest sizes first, and none from far away."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.nearest import nearest

PROBLEM = GemmProblem(64, 4096, 4096)


def config(block_m: int) -> Config:
    return Config("tiled", block_m, 64, 64)


def test_the_nearest_come_first() -> None:
    winners = [
        (GemmProblem(256, 4096, 4096), config(16)),
        (GemmProblem(64, 4096, 8192), config(32)),
        (GemmProblem(32, 4096, 4096), config(32)),
        (GemmProblem(96, 4096, 4096), config(64)),
        (GemmProblem(64, 64, 64), config(128)),
    ]
    assert nearest(PROBLEM, winners) == (config(64), config(32), config(16))


def test_others_say_nothing() -> None:
    """The size itself is asked for anyway; another layout, type or finish has other kernels."""
    others = (
        PROBLEM,
        GemmProblem(64, 4096, 4096, row_major_a=False),
        GemmProblem(64, 4096, 4096, bias=True),
        GemmProblem(64, 4096, 4096, dtype_a="fp16", dtype_b="fp16"),
    )
    assert nearest(PROBLEM, [(other, config(64)) for other in others]) == ()
