"""genkern's own pruning rules for any GPU: how a tile fits the problem, the warps and the grid.

A rule returns True to drop a configs.
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.columns import Column, Mask, least, most
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import columns_of_b, row_tiles

# Registers that a GEMM loop needs in addition to its accumulators: addresses, strides, counters.
OTHER_REGISTERS = 20
# Below this many tiles per CU or SM, a partial last wave costs a quarter of the time or more.
_ENOUGH_TILES_PER_UNIT = 2
# Workgroups per CU or SM beyond which more splits of K add traffic of partial sums but no parallelism.
_SPLIT_K_BLOCKS_PER_UNIT = 4
# From this M and N on, a GEMM has more than enough tiles of every size (tune_gemm v3.4, rule 11).
_LARGE = 2048
# From this many tiles per CU or SM on, larger tiles fill the GPU, too.
_PLENTY_OF_TILES_PER_UNIT = 32


def tiles_m(problem: GemmProblem, configs: ConfigTable) -> Column:
    """Return the number of tiles along M."""
    return row_tiles(problem, configs.BLOCK_SIZE_M)


def tiles(problem: GemmProblem, configs: ConfigTable) -> Column:
    """Return the number of tiles of C, over all products of a batch."""
    return problem.batch * row_tiles(problem, configs.BLOCK_SIZE_M) * -(-problem.N // configs.BLOCK_SIZE_N)


def covering_block(dimension: int) -> int:
    """Return the smallest power of two that covers the dimension, at least 16, which tl.dot needs."""
    return max(16, 1 << (dimension - 1).bit_length())


def dot_needs_k32(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """8-bit operands with BLOCK_SIZE_K below 32.

    genkern: on AMD, Triton falls back from matrix to vector instructions. (On NVIDIA it refuses such a tl.dot.)
    """
    in_8_bits = DTYPES[problem.dtype_a].size_bytes == 1 or DTYPES[problem.dtype_b].size_bytes == 1
    return in_8_bits and configs.BLOCK_SIZE_K < 32


def accumulator_registers(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Accumulators that do not fit a thread's registers, so that they would spill.

    genkern, after Inductor's _prune_reg_spill_configs: BLOCK_SIZE_M * BLOCK_SIZE_N / threads, plus 20 others, against
    the limit per thread and against the thread's share of the registers of the SM or CU. The second limit matters from
    16 warps on.
    """
    threads = configs.num_warps * gpu.warp_size
    available = least(gpu.registers_per_thread_max, gpu.registers_per_unit // threads)
    accumulators = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N * columns_of_b(problem)
    if promotes_products(problem, gpu.arch):
        # Besides the sums a thread holds the products of a step.
        accumulators = accumulators + configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N
    return accumulators > (available - OTHER_REGISTERS) * threads


def warps_starved(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """More warps than the tile has work for.

    genkern: the tile needs 64 * num_warps^2 elements, so 16x16 is enough for 2 warps, 32x32 for 4, 64x64 for 8 and
    128x128 for 16. With less, warps repeat each other's work or issue too few matrix instructions each.
    """
    return configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N < 64 * configs.num_warps * configs.num_warps


def tile_over_problem(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Block larger than the next power of two of its dimension (16 is always kept).

    genkern, as Inductor's _scale_mm_configs clamps: a larger block only computes more padding.
    """
    return (
        (configs.BLOCK_SIZE_M > covering_block(problem.M))
        | (configs.BLOCK_SIZE_N > covering_block(problem.N))
        | (configs.BLOCK_SIZE_K > max(32, covering_block(problem.K)))
    )


def tile_skewed(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """One side of the tile over 8 times the other, although the problem has room for a squarer tile.

    genkern: a tile does 2 M N / (M + N) operations per element loaded, so a tile with sides of 16 to 1 has twice the
    traffic of a square one of equal area.
    """
    block_m, block_n = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N
    wide, high = (block_n > 8 * block_m) & (problem.M > block_m), (block_m > 8 * block_n) & (problem.N > block_n)
    return wide | high


def large_gemm(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """M and N from 2048: blocks below 64 that do not cover K, under 4 warps, or blocks that do not divide M and N.

    genkern, after rule 11 of tune_gemm v3.4 (v34_large_gemm). That rule would leave nothing for K up to 32, for which
    tile_over_problem requires BLOCK_SIZE_K below 64. If 64 divides M (or N), the blocks must divide it; otherwise
    kernels mask.
    """
    if problem.M < _LARGE or problem.N < _LARGE:
        return False
    block_m, block_n, block_k = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N, configs.BLOCK_SIZE_K
    low = (block_m < 64) | (block_n < 64) | ((block_k < 64) & (block_k < problem.K)) | (configs.num_warps < 4)
    uneven_m = problem.M % 64 == 0 and problem.M % block_m != 0
    uneven_n = problem.N % 64 == 0 and problem.N % block_n != 0
    return low | uneven_m | uneven_n


def tile_too_small(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Tile below 64x32 elements although every CU or SM gets more than 32 of them.

    genkern: with that many, larger tiles fill the GPU, too, and load each element fewer times.
    """
    is_small = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N < 64 * 32
    return is_small & (tiles(problem, configs) > _PLENTY_OF_TILES_PER_UNIT * gpu.compute_units)


def split_k_fills(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K although the tiles alone fill the GPU, or more splits than it can run at the same time.

    genkern: split-K writes and reads SPLIT_K * M * N partial sums to gain parallelism. Little is left to gain from two
    tiles per CU or SM on, or beyond four workgroups on each.
    """
    count = tiles(problem, configs)
    fills = count >= _ENOUGH_TILES_PER_UNIT * gpu.compute_units
    return (configs.SPLIT_K != 1) & (fills | (count * configs.SPLIT_K > _SPLIT_K_BLOCKS_PER_UNIT * gpu.compute_units))


def split_k_short(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K that leaves a split without a full block of K.

    genkern: SPLIT_K * BLOCK_SIZE_K > K.
    """
    return (configs.SPLIT_K != 1) & (configs.SPLIT_K * configs.BLOCK_SIZE_K > problem.K)


def split_k_empty(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K whose last splits have nothing to do.

    genkern: the splits get runs of ceil(blocks / SPLIT_K) blocks of K. If a smaller SPLIT_K has runs of the same
    length, the larger one only launches programs that write zeros.
    """
    blocks = -(-problem.K // configs.BLOCK_SIZE_K)
    run = -(-blocks // configs.SPLIT_K)
    return (configs.SPLIT_K != 1) & (run * (configs.SPLIT_K - 1) >= blocks)


def stages_over_loop(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """More stages than the loop over K has iterations; 2 stages are always kept.

    genkern: the pipeline never fills, so it equals one with fewer stages and holds memory in vain.
    """
    blocks = -(-problem.K // configs.BLOCK_SIZE_K)
    return configs.num_stages > most(2, -(-blocks // configs.SPLIT_K))
