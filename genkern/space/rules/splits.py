"""Pruning rules of families that share tiles out, tiled_atomic and stream_k; and of all whose results may differ.

A rule returns True for a config to drop. Both families were timed on an H200 and were the fastest nowhere there
(docs/kernels.md); the limits here are estimates, not taken from those times.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import is_deterministic
from genkern.ops.op import get_op
from genkern.space.rules.tiles import tiles

# A last wave this full leaves less to gain than the partial sums of stream_k cost.
_FULL_ENOUGH = 0.9
# After so many whole waves, a bad last one costs at most a fifth of the time.
_MOST_WHOLE_WAVES = 4
# A share of fewer blocks of K is stored, summed and forgotten in more time than it is multiplied in.
_LEAST_SHARE_BLOCKS = 4


def not_deterministic(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Family whose result may differ from run to run (--deterministic).

    genkern: float additions by atomics happen in whatever order programs end; see determinism.py.
    """
    return not is_deterministic(problem, config)


def atomic_compare_and_swap(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """tiled_atomic's float additions on gfx90a and gfx1100.

    genkern: Triton 3.6 to 3.9 compiles them to loops around global_atomic_cmpswap there, since memory may be
    fine-grained as far as LLVM knows; gfx942, gfx950 and gfx12 have global_atomic_add_f32.
    """
    if config.family != "tiled_atomic" or gpu.arch not in ("gfx90a", "gfx1100"):
        return False
    return get_op(problem.op).accumulator(problem) == "fp32"


def stream_k_full_wave(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """stream_k whose last wave is at least 90 % full, or follows more than 4 whole ones.

    genkern: then whole tiles leave few units idle, and sharing the last wave adds the traffic of partial sums.
    """
    if config.family != "stream_k":
        return False
    whole, shared = divmod(tiles(problem, config), gpu.compute_units)
    return shared == 0 or shared >= _FULL_ENOUGH * gpu.compute_units or whole > _MOST_WHOLE_WAVES


def stream_k_short_share(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """stream_k with fewer than 4 blocks of K for each unit to share.

    genkern: each share costs a tile of partial sums, written and read.
    """
    if config.family != "stream_k":
        return False
    blocks = tiles(problem, config) % gpu.compute_units * -(-problem.K // config.BLOCK_SIZE_K)
    return blocks < _LEAST_SHARE_BLOCKS * gpu.compute_units
