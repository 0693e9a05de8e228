"""Pruning rules for small M: about skinny, skinny_dot, swapped tiles, and families that gemv beats.

A rule returns True to drop a configs. If a rule says H200, its figures come from timing there (docs/kernels.md).
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.columns import Column, Mask, negated, within
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.families.small_m import WARP_K, rows_of_warp
from genkern.ops.op import element_bytes
from genkern.space.rules.tiles import covering_block

# Largest number of rows per program of skinny. Matrix instructions are better for more rows.
_SKINNY_ROWS = 16
# Elements of B that a thread holds at a time: with fewer, too few loads are in flight; with more, registers spill.
_ELEMENTS_PER_THREAD = (8, 64)
# Accumulators per thread over all rows. The other registers hold B, A and addresses.
_ACCUMULATORS_PER_THREAD = 128
_LOAD_BYTES = 16
# Largest number of rows per program of skinny_dot.
_SKINNY_DOT_ROWS = 64
# Limits for skinny_dot with loads in flight, whose data wait in registers beside the sums: rows of A, and bytes of
# weights per warp.
_SKINNY_DOT_WAITING_ROWS, _SKINNY_DOT_WAITING_BYTES = 16, 12 * 1024
# Two sectors of memory: the least that a row of B should have if it is contiguous along N.
_ROW_BYTES = 64
# Largest M for swapped tiles: an upright tile that covers it has twice the 64 rows of wgmma and tcgen05.
_SWAPPED_M = 128
# Largest number of swapped tiles along M, each of which reads all weights.
_SWAPPED_TILES = 2
# Sizes at which gemv and skinny are known to win with one row: N from 128 on, K from 256 to 25,600 and up to 28 times
# N.
_ONE_ROW_LEAST_N = 128
_ONE_ROW_K = (256, 25_600)
_ONE_ROW_K_PER_COLUMN = 28


def dot_for_one_row(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Family with matrix instructions for M = 1, in 16-bit types and sizes at which gemv or skinny won.

    genkern: one row fills at most an eighth of an instruction; gemv and skinny read the weights without any. They won
    all 56 sizes with M = 1 that were tuned without this rule (H200, bf16, N from 128 to 201,088, K from 256 to 25,600
    and at most 28 times N), and took second place in all but one. All other sizes, 8-bit and 32-bit types, B contiguous
    along N, and a K that is not whole pieces of 16 bytes keep all families.
    """
    if not traits_of(configs).uses_dot or problem.M != 1 or problem.row_major_b:
        return False
    least_k, most_k = _ONE_ROW_K
    measured = problem.N >= _ONE_ROW_LEAST_N and least_k <= problem.K <= min(most_k, _ONE_ROW_K_PER_COLUMN * problem.N)
    sizes = {DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes}
    return measured and sizes == {2} and problem.K * 2 % _LOAD_BYTES == 0


def skinny_rows(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny for more than 16 rows, or with a BLOCK_SIZE_M other than the next power of two of M.

    genkern: with fewer rows per program B is read more than once, with more the program multiplies rows that are not
    stored.
    """
    return problem.M > _SKINNY_ROWS or configs.BLOCK_SIZE_M != 1 << (problem.M - 1).bit_length()


def skinny_dot_rows(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny_dot for more than 64 rows, or with a BLOCK_SIZE_M other than the next of 8, 16, 32 and 64.

    genkern: each tile of rows reads the weights, and converts them to numbers, once more.
    """
    return problem.M > _SKINNY_DOT_ROWS or configs.BLOCK_SIZE_M != max(8, 1 << (problem.M - 1).bit_length())


def skinny_dot_registers(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny_dot tile with more than 2,048 sums per warp, or over 4 KiB of weights per warp and step with 16 warps.

    genkern: a thread holds a 32nd of the sums. With 16 warps it has 128 registers.
    """
    weights = _step_bytes(problem, configs)
    return (configs.BLOCK_SIZE_M * rows_of_warp(configs) > 2048) | ((configs.num_warps > 8) & (weights > 4096))


def skinny_dot_stages(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny_dot with num_stages above 1 for over 16 rows of A, or with over 12 KiB of weights in flight per warp.

    genkern: the weights in flight wait in registers, and so does A of the next step, two registers per row. More
    registers spill (Triton 3.6.0).
    """
    if traits_of(configs).reads != "registers":
        return False
    waiting = _step_bytes(problem, configs) * (configs.num_stages + 1)
    too_many = (configs.BLOCK_SIZE_M > _SKINNY_DOT_WAITING_ROWS) | (waiting > _SKINNY_DOT_WAITING_BYTES)
    return (configs.num_stages != 1) & too_many


def _step_bytes(problem: GemmProblem, configs: ConfigTable) -> Column:
    """Return the bytes of weights that a warp of skinny_dot loads in a step."""
    return rows_of_warp(configs) * int(WARP_K * element_bytes(problem)[1])


def skinny_registers(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny tile with fewer than 8 or more than 64 elements of B per thread, or over 128 accumulators.

    genkern: fewer elements do not cover the latency of memory, more do not fit the registers. Each row has accumulators
    of its own.
    """
    least, most = _ELEMENTS_PER_THREAD
    each = configs.BLOCK_SIZE_N * configs.BLOCK_SIZE_K / (configs.num_warps * gpu.warp_size)
    return negated(within(least, each, most)) | (configs.BLOCK_SIZE_M * each > _ACCUMULATORS_PER_THREAD)


def skinny_rows_of_b(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny tile whose rows are not 16 bytes per thread, or for row-major B under 64 bytes along N.

    genkern: if the weights are contiguous along K, such a tile has A in the registers in which it was loaded; any other
    passes A through shared memory, with two barriers per row of A and step (compiled for sm_90 and gfx942). Row-major B
    is contiguous along N, and a row of less than two 32-byte sectors wastes memory requests.
    """
    size = element_bytes(problem)[1]
    if problem.row_major_b:
        return configs.BLOCK_SIZE_N * size < _ROW_BYTES
    return configs.BLOCK_SIZE_K * size != configs.num_warps * gpu.warp_size * _LOAD_BYTES


def skinny_over_problem(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """skinny block larger than the next power of two of its dimension.

    genkern: the part of such a block beyond the dimension is masked and reads nothing.
    """
    return (configs.BLOCK_SIZE_K > covering_block(problem.K)) | (configs.BLOCK_SIZE_N > covering_block(problem.N))


def swapped_large_m(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Swapped tile for M over 128, one that does not cover half of M, or one larger than a dimension needs.

    genkern: a larger M fills the long side of a matrix instruction itself; at M = 64 the upright tile was as fast
    (H200). More than two tiles along M read the weights too often. Blocks go up to the next power of two of their
    dimension; 16 for M, 64 for N and 32 for K are always kept.
    """
    if not traits_of(configs).swapped:
        return False
    return (
        (problem.M > _SWAPPED_M)
        | (problem.M > _SWAPPED_TILES * configs.BLOCK_SIZE_M)
        | (configs.BLOCK_SIZE_M > max(16, 1 << (problem.M - 1).bit_length()))
        | (configs.BLOCK_SIZE_N > max(64, covering_block(problem.N)))
        | (configs.BLOCK_SIZE_K > max(32, covering_block(problem.K)))
    )


def swapped_instruction(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Swapped tile that does not fit its matrix instruction.

    genkern: every warp needs at least 16 rows of N; wgmma and tcgen05 need 64 of them and whole groups of 4 warps.
    AMD's instructions have at least 16 columns: for 8, Triton uses mfma_4x4x4 on CDNA and no matrix instruction on
    gfx12 (3.6, 3.7).
    """
    if not traits_of(configs).swapped:
        return False
    return (
        (configs.BLOCK_SIZE_M < gpu.has.matrix_columns_min)
        | (configs.BLOCK_SIZE_N < gpu.has.matrix_rows)
        | (configs.num_warps % gpu.has.matrix_warps != 0)
        | (configs.BLOCK_SIZE_N < 16 * configs.num_warps)
    )
