"""Pruning rules of single kernel families: gemv, tiled_tma, warp_specialized.

A rule returns True for a config to drop. Where a rule says H200, its figures come from timing these families
there (docs/kernels.md).
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.config import Config
from genkern.dtypes import DTYPES
from genkern.family import FAMILIES, widths
from genkern.gpus import Gpu
from genkern.problem import GemmProblem
from genkern.rules_tiles import covering_block, tiles

# Elements of B that a thread of gemv holds: below, too few loads are in flight; above, registers spill.
_GEMV_ELEMENTS_PER_THREAD = (8, 64)
# 8 bytes a barrier, two per stage, and alignment between buffers.
_WARP_SPECIALIZED_SLACK_BYTES = 1024
# Share of the last wave's programs that must have a tile, for widths that exist only to fill it.
_LEAST_FILL = 0.85


def gemv_one_row(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """gemv for more than one row of A, or for weights whose rows do not run along K.

    genkern: the kernel multiplies one row, and reads B in the direction in which it is stored.
    """
    return config.family == "gemv" and (problem.M != 1 or problem.row_major_b)


def gemv_registers(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """gemv tile with fewer than 8 or more than 64 elements a thread.

    genkern: fewer leave memory latency uncovered, more do not fit the registers.
    """
    if config.family != "gemv":
        return False
    least, most = _GEMV_ELEMENTS_PER_THREAD
    each = config.BLOCK_SIZE_N * config.BLOCK_SIZE_K / (config.num_warps * gpu.warp_size)
    return not least <= each <= most


def gemv_over_problem(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """gemv block larger than the next power of two of its dimension.

    genkern: the rest of such a block is masked out and reads nothing.
    """
    if config.family != "gemv":
        return False
    return config.BLOCK_SIZE_K > covering_block(problem.K) or config.BLOCK_SIZE_N > covering_block(problem.N)


def tma_many_waves(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """tiled_tma with more than two tiles per SM.

    genkern: then programs that walk over tiles (persistent_tma) start once instead of once a tile.
    """
    return config.family == "tiled_tma" and tiles(problem, config) > 2 * gpu.compute_units


def wgmma_operands(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized for anything but 16-bit operands with K contiguous on sm_90.

    genkern: the template's shared-memory layouts are those of K-contiguous operands, and wgmma is Hopper's.
    """
    if config.family != "warp_specialized":
        return False
    sixteen = all(DTYPES[dtype].size_bytes == 2 for dtype in (problem.dtype_a, problem.dtype_b))
    return gpu.arch != "sm_90" or not sixteen or not problem.row_major_a or problem.row_major_b


def wgmma_rows(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized tile whose rows are not whole warps of 16, or mostly beyond M.

    genkern: num_warps warps of 16 rows each multiply at a time; with at most 32 rows of A the tensor cores are idle
    anyway, and smaller tiles read as fast.
    """
    if config.family != "warp_specialized":
        return False
    block_m = config.BLOCK_SIZE_M
    if block_m % (16 * config.num_warps) != 0 or problem.M <= 32:
        return True
    return block_m > max(64, covering_block(problem.M))


def wgmma_accumulators(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized tile with more than 200 accumulators a thread, or with fewer than 16.

    genkern: 240 registers are left to a multiplying thread when the loading warp gives its own away; about 40 hold
    addresses. Below 16, waiting for a buffer takes longer than multiplying it.
    """
    if config.family != "warp_specialized":
        return False
    return not 16 <= config.BLOCK_SIZE_M * config.BLOCK_SIZE_N / (32 * config.num_warps) <= 200


def wgmma_shared_memory(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """warp_specialized buffers that do not fit, or that leave room for two stages more.

    genkern: deeper rings were never slower (H200), so only the deepest two that fit are tried.
    """
    if config.family != "warp_specialized":
        return False
    size, size_c = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_c].size_bytes
    absent = widths(config.BLOCK_SIZE_N).count(0)
    stage = (config.BLOCK_SIZE_M + config.BLOCK_SIZE_N) * config.BLOCK_SIZE_K * size
    once = config.BLOCK_SIZE_M * (config.BLOCK_SIZE_N + 16 * absent) * size_c + absent * 16 * config.BLOCK_SIZE_K * size
    room = gpu.shared_bytes_per_block - once - _WARP_SPECIALIZED_SLACK_BYTES
    return not config.num_stages * stage <= room < (config.num_stages + 2) * stage


def width_fills_nothing(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Width that is no power of two and leaves more than 15 % of the programs of the last wave without a tile.

    genkern: such widths cost the tensor cores some efficiency, and pay by cutting C to fit the SMs.
    """
    if not FAMILIES[config.family].any_width or config.BLOCK_SIZE_N & (config.BLOCK_SIZE_N - 1) == 0:
        return False
    count = tiles(problem, config)
    waves = -(-count // gpu.compute_units)
    return count < _LEAST_FILL * waves * gpu.compute_units
