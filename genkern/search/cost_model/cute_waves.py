"""The cost model's time of persistent kernels in CuTe DSL: whole waves of clusters, by what bounds a tile.

456 launches (114 kernels with four group sizes each) were timed in shuffled rounds on an H200 at each of 15 sizes (M
from 1,000 to 8,192, bf16). In the model's order, the best of the first 20 launches is 0.1 % behind the best of all in
geomean, and 1.3 % at most; the best of the first 5 is 0.4 % and 2.8 % behind. The two constants of these kernels were
fitted to the same timings.

NOTHING was measured on sm_100: there the model has the H200's two constants, and the data sheet's and PTX's figures of
    tcgen05. It orders candidates; its times in microseconds have an unknown error.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.cost import TileWave
from genkern.kernels.contract.gluon_tile import columns_held

# Bytes per clock that reach an SM through the copy engine, with which these kernels load (H200).
_LOADED_PER_CLOCK = 64
# Microseconds from the last product of a tile to its last byte in C (H200); in ping-pong kernels they occur once.
_STORE_US = 1.0
# L2 delivers sectors: a row of a box that starts inside a line takes two lines.
_LINE_BYTES, _SECTOR_BYTES = 128, 32
# wgmma reads 32 bytes along K of each of its 64 rows and of its columns from shared memory, at 128 bytes per clock;
# narrow products wait for that. Calculated, not fitted: no timed tile was so narrow.
_CLOCKS_OF_ROWS, _CLOCKS_OF_COLUMN, _CLOCKS_OF_PRODUCT = 16, 0.25, 0.5


def programs_us(problem: GemmProblem, config: Config, tile_wave: TileWave, gpu: Gpu, unit_tflops: float) -> float:
    """Return the microseconds of all tiles of a config whose clusters take tiles in turns.

    `unit_tflops` is the rate at which a busy SM multiplies.
    """
    block_m, block_n = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
    turns = -(-problem.M // (block_m * tile_wave.tiles_m)) * -(-problem.N // (block_n * tile_wave.tiles_n))
    # The parts of a split K are computed like the products of a batch, in correspondingly less time.
    turns *= problem.batch * config.SPLIT_K
    waves = -(-turns // tile_wave.at_once(gpu.compute_units))
    height, columns = tile_wave.sides(block_m, block_n)
    rows, width = (max(height, tile_wave.full_rows), columns) if tile_wave.full_rows else (height, _paid(columns))
    matrix_us = 2 * rows * width / tile_wave.programs_of_tile * problem.K / config.SPLIT_K / unit_tflops * 1e-6
    # The programs of a cluster each load a part of what they have in common.
    loaded = _loaded(problem, "a", block_m // tile_wave.programs_of_tile) / tile_wave.tiles_n
    loaded += _loaded(problem, "b", block_n // tile_wave.programs_of_tile) / tile_wave.tiles_m
    load_us = loaded / config.SPLIT_K / (_LOADED_PER_CLOCK * gpu.clock_mhz)
    return waves * max(matrix_us, load_us) + _STORE_US * (1 if tile_wave.hides_stores else waves)


def _paid(width: int) -> float:
    """Return the width whose products take as long as a wgmma of this width, which may wait for its operands."""
    return max(width, (_CLOCKS_OF_ROWS + _CLOCKS_OF_COLUMN * width) / _CLOCKS_OF_PRODUCT)


def _loaded(problem: GemmProblem, operand: str, rows: int) -> float:
    """Return the bytes that `rows` rows of a tile request from L2, along all of K."""
    dtype, along_k, across = problem.dtype_a, problem.row_major_a, problem.M
    if operand == "b":
        dtype, along_k, across = problem.dtype_b, not problem.row_major_b, problem.N
    size = DTYPES[dtype].size_bytes
    lines = 2 if (problem.K if along_k else across) * size % _LINE_BYTES else 1
    if along_k:
        return problem.K * size * lines * rows
    # The operand comes in whole boxes of 64 rows. Calculated, not fitted: a row that starts inside a sector takes five
    # sectors instead of four; if the matrix's own rows start inside sectors, no tile is better than others.
    begins_off = rows * size % _SECTOR_BYTES and across * size % _SECTOR_BYTES == 0
    return problem.K * size * lines * (1.25 if begins_off else 1.0) * columns_held(rows, turned=True)
