"""How long the persistent kernels in CuTe DSL take, for the predictor: whole waves of clusters, by what bounds a tile.

456 launches (114 kernels with up to four group sizes) were timed in shuffled rounds on an H200 at each of 15 sizes (M
from 1,000 to 8,192, bf16, 2026-11-22). Of the first 20 by this the best is 0.1 % behind the best of all in geomean, 1.3
at most; of the first 5 it is 0.4 and 2.8 %. The two constants of these kernels were chosen on the same timings.

Of sm_100 NOTHING was measured: the same model with the H200's two constants, and what the data sheet and PTX say of
tcgen05. There it orders candidates, and its microseconds are worth no more.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.cost import Turn
from genkern.kernels.families.gluon_tile import columns_held

# Bytes a clock that reach an SM through the copy engine, by which these kernels load alone (H200).
_LOADED_PER_CLOCK = 64
# From the last product of a tile to its last byte in C, microseconds (H200): in ping-pong, once.
_STORE_US = 1.0
# What L2 hands out, in sectors: a row of a box that begins off a line takes two lines.
_LINE_BYTES, _SECTOR_BYTES = 128, 32
# wgmma reads 32 bytes along K of each of its 64 rows and of its columns from shared memory, 128 bytes a clock; narrow
# ones wait for that, by arithmetic: it was fitted to no timings, in which no tile was so narrow.
_CLOCKS_OF_ROWS, _CLOCKS_OF_COLUMN, _CLOCKS_OF_PRODUCT = 16, 0.25, 0.5


def programs_us(problem: GemmProblem, config: Config, turn: Turn, gpu: Gpu, unit_tflops: float) -> float:
    """Microseconds of all tiles, of a config whose clusters go by turns; `unit_tflops` is what a busy SM multiplies."""
    block_m, block_n = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
    turns = -(-problem.M // (block_m * turn.tiles_m)) * -(-problem.N // (block_n * turn.tiles_n))
    # The parts of a split K are made like the products of a batch, in as much less time.
    turns *= problem.batch * config.SPLIT_K
    waves = -(-turns // turn.at_once(gpu.compute_units))
    height, columns = turn.sides(block_m, block_n)
    rows, width = (max(height, turn.full_rows), columns) if turn.full_rows else (height, _paid(columns))
    matrix_us = 2 * rows * width / turn.programs_of_tile * problem.K / config.SPLIT_K / unit_tflops * 1e-6
    # Of what the programs of a cluster have in common each loads a share.
    loaded = _loaded(problem, "a", block_m // turn.programs_of_tile) / turn.tiles_n
    loaded += _loaded(problem, "b", block_n // turn.programs_of_tile) / turn.tiles_m
    load_us = loaded / config.SPLIT_K / (_LOADED_PER_CLOCK * gpu.clock_mhz)
    return waves * max(matrix_us, load_us) + _STORE_US * (1 if turn.hides_stores else waves)


def _paid(width: int) -> float:
    """The width whose products take as long as a wgmma of this one, which may have to wait for what it reads."""
    return max(width, (_CLOCKS_OF_ROWS + _CLOCKS_OF_COLUMN * width) / _CLOCKS_OF_PRODUCT)


def _loaded(problem: GemmProblem, operand: str, rows: int) -> float:
    """Bytes that so many rows of a tile ask L2 for, all along K."""
    dtype, along_k, across = problem.dtype_a, problem.row_major_a, problem.M
    if operand == "b":
        dtype, along_k, across = problem.dtype_b, not problem.row_major_b, problem.N
    size = DTYPES[dtype].size_bytes
    lines = 2 if (problem.K if along_k else across) * size % _LINE_BYTES else 1
    if along_k:
        return problem.K * size * lines * rows
    # It comes in boxes of 64 rows, whole ones. By arithmetic, fitted to no timings: what begins off a sector takes five
    # where it needs four; where the matrix's rows do, no tile begins better.
    begins_off = rows * size % _SECTOR_BYTES and across * size % _SECTOR_BYTES == 0
    return problem.K * size * lines * (1.25 if begins_off else 1.0) * columns_held(rows, turned=True)
