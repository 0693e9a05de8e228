"""Pruning rules of the families in Gluon, warp_specialized and warp_specialized_tiled.

A rule returns True for a config to drop. Where a rule says H200, its figures come from timing warp_specialized
there (docs/kernels.md).
"""

from __future__ import annotations

from genkern.config import Config
from genkern.dtypes import DTYPES
from genkern.family import FAMILIES, widths
from genkern.gpus import Gpu
from genkern.problem import GemmProblem
from genkern.rules_tiles import covering_block, tiles

_PERSISTENT = "warp_specialized"
_GLUON = (_PERSISTENT, "warp_specialized_tiled")
# 8 bytes a barrier, two per stage, and alignment between buffers.
_SLACK_BYTES = 1024
# Share of the last wave's programs that must have a tile, for widths that exist only to fill it.
_LEAST_FILL = 0.85
# Share of the last wave's SMs that may have a whole tile for splitting it to pay.
_MOST_FILL = 0.9
# Share of the SMs that must have a tile of the last wave, of families that do not share.
_LEAST_BUSY = 0.7
# Waves of whole tiles before the one that is shared: behind more of them it counts for little.
_MOST_WHOLE_WAVES = 4


def wgmma_operands(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Gluon kernel for anything but 16-bit operands with K contiguous on sm_90.

    genkern: the template's shared-memory layouts are those of K-contiguous operands, and wgmma is Hopper's.
    """
    if config.family not in _GLUON:
        return False
    sixteen = all(DTYPES[dtype].size_bytes == 2 for dtype in (problem.dtype_a, problem.dtype_b))
    return gpu.arch != "sm_90" or not sixteen or not problem.row_major_a or problem.row_major_b


def wgmma_rows(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Gluon tile whose rows are not whole warps of 16, or mostly beyond M.

    genkern: num_warps warps of 16 rows each multiply at a time; with at most 32 rows of A the tensor cores are idle
    anyway, and smaller tiles read as fast.
    """
    if config.family not in _GLUON:
        return False
    block_m = config.BLOCK_SIZE_M
    if block_m % (16 * config.num_warps) != 0 or problem.M <= 32:
        return True
    return block_m > max(64, covering_block(problem.M))


def wgmma_accumulators(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Gluon tile with more than 200 accumulators a thread, or with fewer than 16.

    genkern: 240 registers are left to a multiplying thread when the loading warp gives its own away; about 40 hold
    addresses. Below 16, waiting for a buffer takes longer than multiplying it.
    """
    if config.family not in _GLUON:
        return False
    return not 16 <= config.BLOCK_SIZE_M * config.BLOCK_SIZE_N / (32 * config.num_warps) <= 200


def wgmma_c_room(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized_tiled whose buffers of B do not hold its rows of C.

    genkern: C leaves through them, a width of the tile through the buffers of that width, so num_stages *
    BLOCK_SIZE_K elements of B must be as long as BLOCK_SIZE_M of C. The kernel asserts it when it is compiled.
    """
    if config.family != "warp_specialized_tiled":
        return False
    size, size_c = DTYPES[problem.dtype_b].size_bytes, DTYPES[problem.dtype_c].size_bytes
    return config.num_stages * config.BLOCK_SIZE_K * size < config.BLOCK_SIZE_M * size_c


def wgmma_shared_memory(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Gluon buffers that do not fit, or that leave room for two stages more.

    genkern: deeper rings were never slower (H200), so only the deepest two that fit are tried. Persistent programs
    have a buffer for C besides the ring; the others let C leave through the buffers of B (wgmma_c_room).
    """
    if config.family not in _GLUON:
        return False
    size, size_c = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_c].size_bytes
    absent = widths(config.BLOCK_SIZE_N).count(0)
    stage = (config.BLOCK_SIZE_M + config.BLOCK_SIZE_N) * config.BLOCK_SIZE_K * size
    once = absent * 16 * config.BLOCK_SIZE_K * size
    if config.family == _PERSISTENT:
        once += config.BLOCK_SIZE_M * (config.BLOCK_SIZE_N + 16 * absent) * size_c
    room = gpu.shared_bytes_per_block - once - _SLACK_BYTES
    return not config.num_stages * stage <= room < (config.num_stages + 2) * stage


def width_fills_nothing(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Width that is no power of two and leaves more than 15 % of the programs of the last wave without a tile.

    genkern: such widths cost the tensor cores some efficiency, and pay by cutting C to fit the SMs.
    """
    if not FAMILIES[config.family].any_width or config.BLOCK_SIZE_N & (config.BLOCK_SIZE_N - 1) == 0:
        return False
    if config.family == _PERSISTENT and config.SPLIT_K > 1:
        # Shares of the rest leave nobody idle, whatever the width.
        return False
    count = tiles(problem, config)
    waves = -(-count // gpu.compute_units)
    return count < _LEAST_FILL * waves * gpu.compute_units


def wgmma_waves(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized_tiled with two full waves and more, or that leaves over 30 % of the last wave's SMs idle.

    genkern: from two waves on, programs that walk over tiles (warp_specialized) start once instead of once a tile; and
    where SMs are idle, smaller tiles or shares of them (SPLIT_K) occupy them.
    """
    if config.family != "warp_specialized_tiled":
        return False
    whole, rest = divmod(tiles(problem, config), gpu.compute_units)
    return whole > 1 or 0 < rest < _LEAST_BUSY * gpu.compute_units


def wgmma_shares(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized with SPLIT_K where its shares are of no use, or would not fit the kernel's 32-bit arithmetic.

    genkern: programs share the tiles beyond the last full wave, SPLIT_K of them a tile and all SMs at most. That helps
    where such tiles exist, leave over 10 % of their wave idle, follow four full waves at most, and keep 85 % of the SMs
    busy when shared; a SPLIT_K beyond what gives every SM a share changes nothing.
    """
    if config.family != _PERSISTENT or config.SPLIT_K == 1:
        return False
    units = gpu.compute_units
    whole, rest = divmod(tiles(problem, config), units)
    if rest == 0 or rest > _MOST_FILL * units or whole > _MOST_WHOLE_WAVES:
        return True
    if rest * config.SPLIT_K < _LEAST_FILL * units or rest * (config.SPLIT_K - 1) >= units:
        return True
    return (units + 1) * rest * -(-problem.K // config.BLOCK_SIZE_K) >= 2**31
