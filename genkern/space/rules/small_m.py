"""Pruning rules for small M: of skinny, tiled_swapped and tiled_tma_swapped, and of all that is no match for gemv.

A rule returns True for a config to drop. Where a rule says H200, its figures come from timing there (docs/kernels.md).
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of
from genkern.kernels.families.few_rows import WARP_K, rows_of_warp
from genkern.ops.op import element_bytes
from genkern.space.rules.tiles import covering_block

# Rows that a program of skinny can hold; a wider M is better multiplied by matrix instructions.
_SKINNY_ROWS = 16
# Elements of B that a thread holds at a time: below, too few loads are in flight; above, they spill.
_ELEMENTS_PER_THREAD = (8, 64)
# Accumulators of a thread, over all rows: the other registers hold B, A and addresses.
_ACCUMULATORS_PER_THREAD = 128
_LOAD_BYTES = 16
# Rows that a program of skinny_dot can hold.
_SKINNY_DOT_ROWS = 64
# What its threads can hold beside their sums while they wait.
_SKINNY_DOT_WAITING_ROWS, _SKINNY_DOT_WAITING_BYTES = 16, 12 * 1024
# Two sectors of memory: what a row of B must bring when it runs along N.
_ROW_BYTES = 64
# Up to here a tile that covers M needs no more than two of the 64 rows of wgmma and tcgen05 for it.
_SWAPPED_M = 128
# Tiles along M that may read the same weights.
_SWAPPED_TILES = 2
# Where gemv and skinny are known to win with one row: N from 128 on, K from 256 to 25,600 and up to 28 for each column.
_ONE_ROW_LEAST_N = 128
_ONE_ROW_K = (256, 25_600)
_ONE_ROW_K_PER_COLUMN = 28


def dot_for_one_row(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """A family with matrix instructions for M = 1, 16-bit types and weights along K, where gemv or skinny won.

    genkern: one row fills an eighth of an instruction at most, and gemv and skinny read the weights without any. They
    won all 56 sizes with M = 1 that were tuned without this rule (H200, bf16, N from 128 to 201,088, K from 256 to
    25,600, 28 for each column at most), and were second in all but one. What is beyond these sizes, or in 8 or 32 bits,
    keeps all families, as does a K that is not whole pieces of 16 bytes.
    """
    if not form_of(config).uses_dot or problem.M != 1 or problem.row_major_b:
        return False
    least_k, most_k = _ONE_ROW_K
    measured = problem.N >= _ONE_ROW_LEAST_N and least_k <= problem.K <= min(most_k, _ONE_ROW_K_PER_COLUMN * problem.N)
    sizes = {DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes}
    return measured and sizes == {2} and problem.K * 2 % _LOAD_BYTES == 0


def skinny_rows(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny for more than 16 rows, or with another BLOCK_SIZE_M than the next power of two of M.

    genkern: fewer rows a program read B more than once, and more of them multiply what is not stored.
    """
    return problem.M > _SKINNY_ROWS or config.BLOCK_SIZE_M != 1 << (problem.M - 1).bit_length()


def skinny_dot_rows(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny_dot for more than 64 rows, or with another BLOCK_SIZE_M than the next of 8, 16, 32 and 64.

    genkern: each tile of rows reads the weights, and has to make numbers of them, once more.
    """
    return problem.M > _SKINNY_DOT_ROWS or config.BLOCK_SIZE_M != max(8, 1 << (problem.M - 1).bit_length())


def skinny_dot_registers(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny_dot tile of more than 2,048 elements, or of over 4 KiB of weights a step where there are 16 warps.

    genkern: a thread has a 32nd of them as sums; 16 warps have 128 registers a thread.
    """
    weights = _step_bytes(problem, config)
    return config.BLOCK_SIZE_M * rows_of_warp(config) > 2048 or (config.num_warps > 8 and weights > 4096)


def skinny_dot_stages(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny_dot with several steps on their way for more than 16 rows of A, or with over 12 KiB of weights a warp.

    genkern: they wait in registers, and so does A of the next step, two registers for each row; more are spilled
    (Triton 3.6.0).
    """
    if form_of(config).reads != "registers" or config.num_stages == 1:
        return False
    waiting = _step_bytes(problem, config) * (config.num_stages + 1)
    return config.BLOCK_SIZE_M > _SKINNY_DOT_WAITING_ROWS or waiting > _SKINNY_DOT_WAITING_BYTES


def _step_bytes(problem: GemmProblem, config: Config) -> int:
    """Of the weights that a warp of skinny_dot loads in a step."""
    return rows_of_warp(config) * int(WARP_K * element_bytes(problem)[1])


def skinny_registers(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny tile with fewer than 8 or more than 64 elements of B a thread, or over 128 accumulators.

    genkern: fewer leave memory latency uncovered, more do not fit the registers. Each row has accumulators of its own.
    """
    least, most = _ELEMENTS_PER_THREAD
    each = config.BLOCK_SIZE_N * config.BLOCK_SIZE_K / (config.num_warps * gpu.warp_size)
    return not least <= each <= most or config.BLOCK_SIZE_M * each > _ACCUMULATORS_PER_THREAD


def skinny_rows_of_b(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny tile one row of which is not 16 bytes for each thread, or for row-major B under 64 bytes along N.

    genkern: with K-contiguous weights such a tile has A where its loads put it; any other passes A through shared
    memory, with two barriers a row of A and step (compiled for sm_90 and gfx942). Row-major B runs along N, and a
    row of less than two 32-byte sectors wastes memory requests.
    """
    size = element_bytes(problem)[1]
    if problem.row_major_b:
        return config.BLOCK_SIZE_N * size < _ROW_BYTES
    return config.BLOCK_SIZE_K * size != config.num_warps * gpu.warp_size * _LOAD_BYTES


def skinny_over_problem(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """skinny block larger than the next power of two of its dimension.

    genkern: the rest of such a block is masked out and reads nothing.
    """
    return config.BLOCK_SIZE_K > covering_block(problem.K) or config.BLOCK_SIZE_N > covering_block(problem.N)


def swapped_large_m(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Swapped operands for M over 128, in blocks that do not cover half of M, or that a dimension does not need.

    genkern: a larger M fills the long side of a matrix instruction itself; at M = 64 the upright tile was as fast
    (H200). More than two tiles along M read the weights too often. Blocks go up to the next power of two of their
    dimension; 16 stay for M, 64 for N, 32 for K.
    """
    if not form_of(config).swapped:
        return False
    return (
        problem.M > min(_SWAPPED_M, _SWAPPED_TILES * config.BLOCK_SIZE_M)
        or config.BLOCK_SIZE_M > max(16, 1 << (problem.M - 1).bit_length())
        or config.BLOCK_SIZE_N > max(64, covering_block(problem.N))
        or config.BLOCK_SIZE_K > max(32, covering_block(problem.K))
    )


def swapped_instruction(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Swapped operands in a tile that its matrix instruction does not fit.

    genkern: every warp has 16 rows of N at least; wgmma and tcgen05 take 64 of them and whole groups of 4 warps. AMD's
    have 16 columns at least: for 8, Triton takes mfma_4x4x4 on CDNA and no matrix instruction on gfx12 (3.6, 3.7).
    """
    if not form_of(config).swapped:
        return False
    if config.BLOCK_SIZE_M < gpu.has.matrix_columns_min or config.BLOCK_SIZE_N < gpu.has.matrix_rows:
        return True
    if config.num_warps % gpu.has.matrix_warps != 0:
        return True
    return config.BLOCK_SIZE_N < 16 * config.num_warps
