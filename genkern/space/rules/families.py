"""Pruning rules about single kernel families: gemv, tiled, tiled_tma.

A rule returns True to drop a configs. If a rule says H200, its figures come from timing these families there
(docs/kernels.md).
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.columns import Mask, either, negated, within
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.families.limits import tma_operands_limit, tma_output_limit
from genkern.space.rules.tiles import covering_block, tiles

# Elements of B per thread of gemv: with fewer, too few loads are in flight; with more, registers spill.
_GEMV_ELEMENTS_PER_THREAD = (8, 64)

# Rows, columns and multiplications from which TMA families were at least 13 % faster than tiled.
_TMA_ROWS, _TMA_PRODUCTS = 256, 2**30


def gemv_registers(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """gemv tile with fewer than 8 or more than 64 elements per thread (more than 32 with 16 warps).

    genkern: fewer elements do not cover the latency of memory. More do not fit the registers, of which a thread has 128
    with 16 warps.
    """
    least, most = _GEMV_ELEMENTS_PER_THREAD
    each = configs.BLOCK_SIZE_N * configs.BLOCK_SIZE_K / (configs.num_warps * gpu.warp_size)
    return negated(within(least, each, either(configs.num_warps > 8, most // 2, most)))


def gemv_over_problem(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """gemv block larger than the next power of two of its dimension.

    genkern: the part of such a block beyond the dimension is masked and reads nothing.
    """
    return (configs.BLOCK_SIZE_K > covering_block(problem.K)) | (configs.BLOCK_SIZE_N > covering_block(problem.N))


def tma_many_waves(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """tiled_tma with more than two tiles per SM.

    genkern: then persistent_tma is better, since its programs start once instead of once per tile. It cannot compute
    batches, so the rule drops nothing for them.
    """
    return problem.batch == 1 and tiles(problem, configs) > 2 * gpu.compute_units


def tiled_beside_tma(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """tiled for 16-bit operands that TMA can load and store, from 256 rows and columns and 2**30 products on.

    genkern: on 11 such sizes that were not chosen for it, with 50 to 860 configs of tiled measured, tiled took 1.13 to
    3.1 times as long as the best TMA family (H200). It won none of the 199 such sizes in results/nvidia_h200.
    """
    if problem.batch > 1 or DTYPES[problem.dtype_a].size_bytes != 2:
        return False
    if min(problem.M, problem.N) < _TMA_ROWS or problem.M * problem.N * problem.K < _TMA_PRODUCTS:
        return False
    return gpu.has.tma and not (tma_operands_limit(problem) or tma_output_limit(problem))
