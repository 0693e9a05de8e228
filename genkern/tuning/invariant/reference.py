"""The reference of an order of sums: its plainest kernel, which others are compared with to the bit."""

from __future__ import annotations

import itertools

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal

# tune_gemm's kernel, which has no ring, no copies and no cluster, in the smallest tiles that have each instruction.
_FAMILY = "tiled"
_TILES = ((64, 64), (64, 16), (16, 64), (16, 16))
_DEPTHS = (64, 128, 32, 256, 16)
_MOST_PARTS = 64


def reference_of(problem: GemmProblem, order: str, gpu: Gpu) -> Config | None:
    """A config of that order that is legal for the problem; None where only other kernels have it."""
    parts = order.partition(" parts")[0].rpartition(" ")[2] if " parts" in order else "1"
    splits = int(parts) if parts.isdecimal() else 1
    if splits > _MOST_PARTS:
        return None
    for depth, (rows, columns) in itertools.product(_DEPTHS, _TILES):
        config = Config(_FAMILY, rows, columns, depth, SPLIT_K=splits, num_warps=4, num_stages=2)
        if sums_of(problem, config, gpu.arch) == order and not legal(problem, config, gpu):
            return config
    return None
