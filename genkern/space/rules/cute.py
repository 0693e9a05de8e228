"""Pruning rules of the families in CuTe DSL.

A rule returns True for a config to drop. Where a rule says H200, its figures come from timing these families there
(docs/cute.md).
"""

from __future__ import annotations

from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.dense import FORMS, shared_bytes
from genkern.kernels.families.limits import tma_output_limit
from genkern.space.rules.tiles import covering_block, tiles

# From so few rows on the tensor cores are idle anyway, and tiles upright in N (warp_specialized_swapped) waste less.
_FEW_ROWS = 32
_SQUARE_TILE = 128 * 128
_MANY_WAVES = 4
# Share of the last wave's programs that must have a tile, for widths that exist only to fill it.
_LEAST_FILL = 0.85
# Stages beyond which none was faster.
_DEEP_RING = 8
# What L2 hands out.
_LINE_BYTES = 128


def _form_of(config: Config) -> tuple[int, int]:
    """The cluster along M and along N."""
    form = FORMS[config.family]
    return form.cluster_m, form.cluster_n


def cute_rows(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile whose rows are mostly beyond M, or any of them with at most 32 rows of A.

    genkern: as wgmma_rows; these families have the 64 rows of wgmma along M only.
    """
    if config.family not in FORMS:
        return False
    return problem.M <= _FEW_ROWS or max(64, covering_block(problem.M)) < config.BLOCK_SIZE_M


def cute_width(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile that is wider than N, rounded up to a multiple of 8.

    genkern: the columns beyond it are multiplied for nothing.
    """
    return config.family in FORMS and max(16, -(-problem.N // 8) * 8) < config.BLOCK_SIZE_N


def cute_tile_small(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile of fewer elements than 128x128 in over four waves of them.

    genkern: as wgmma_tile_small: fewer and larger tiles read less, and are no harder to deal out.
    """
    if config.family not in FORMS or config.BLOCK_SIZE_M * config.BLOCK_SIZE_N >= _SQUARE_TILE:
        return False
    return tiles(problem, config) > _MANY_WAVES * gpu.compute_units


def cute_stages(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe ring that leaves room for another stage, up to 8.

    genkern: stages hide the latency of memory, and shared memory is of no other use to a program that has its SM alone.
    """
    if config.family not in FORMS or config.num_stages >= _DEEP_RING:
        return False
    return shared_bytes(problem, replace(config, num_stages=config.num_stages + 1)) <= gpu.shared_bytes_per_block


def cute_wave(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile of a width that is no power of two and leaves over 15 % of the last wave's clusters without a turn.

    genkern: as width_fills_nothing, by clusters: such widths are there to cut C to fill the SMs, or to cover N.
    """
    width = config.BLOCK_SIZE_N
    if config.family not in FORMS or width & (width - 1) == 0 or width == -(-problem.N // 8) * 8:
        return False
    along_m, along_n = _form_of(config)
    turns = -(-problem.M // (config.BLOCK_SIZE_M * along_m)) * -(-problem.N // (width * along_n))
    at_once = gpu.compute_units // (along_m * along_n)
    return turns < _LEAST_FILL * -(-turns // at_once) * at_once


def cute_cluster_empty(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe cluster with more programs along M or N than there are tiles.

    genkern: the others would load and multiply what lies beyond C.
    """
    if config.family not in FORMS:
        return False
    along_m, along_n = _form_of(config)
    return along_m > -(-problem.M // config.BLOCK_SIZE_M) or along_n > -(-problem.N // config.BLOCK_SIZE_N)


def cute_cluster_of_four(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe cluster of four where rows of A and B begin on 128 bytes.

    genkern: an H200 runs 30 such clusters at a time, 120 of 132 SMs. What they save counts where a box of the copy
    engine asks for two lines of L2 where it needs one.
    """
    if config.family not in FORMS or FORMS[config.family].cluster < 4:
        return False
    pitches = (problem.K if problem.row_major_a else problem.M, problem.N if problem.row_major_b else problem.K)
    sizes = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes
    return all(pitch * size % _LINE_BYTES == 0 for pitch, size in zip(pitches, sizes, strict=True))


def cute_direct(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe kernel that stores C from registers where the copy engine could.

    genkern: it writes 4 bytes of each of 8 rows at a time; NVIDIA's guide tries both (use_tma_store).
    """
    if config.family not in FORMS or FORMS[config.family].tma_store:
        return False
    return DTYPES[problem.dtype_c].size_bytes == 2 and not tma_output_limit(problem)
