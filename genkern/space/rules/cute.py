"""Pruning rules about the families in CuTe DSL.

A rule returns True to drop a configs. If a rule says H200, its figures come from timing these families there
(docs/cute.md). Nothing has been timed on sm_100: nvidia_sm100_cute.yaml names only rules whose reason is not a
measurement.
"""

from __future__ import annotations

from genkern.gemm.columns import Column, Mask, least, most, negated
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.cost import TileWave
from genkern.kernels.contract.gluon_tile import TURNED_BOX, turned
from genkern.kernels.families.limits import tma_output_limit
from genkern.space.rules.tiles import covering_block, tiles

# Up to this many rows the tensor cores are idle anyway, and swapped tiles waste less.
_FEW_ROWS = 32
_SQUARE_TILE = 128 * 128
_MANY_WAVES = 4
# Share of the clusters of the last wave that must have a tile, for sides of tiles that exist only to fill it.
_LEAST_FILL = 0.8
# K-blocks that a part of K must have.
_LEAST_PART_BLOCKS = 4
# Stages beyond which no ring was faster.
_DEEP_RING = 12
# Clusters of at least this many programs leave SMs over (units_in_clusters), so they are only for one or two waves.
_LARGE_CLUSTER = 4
# Bytes of a line of L2.
_LINE_BYTES = 128
# Width that is always allowed, by whether the tile is swapped, even if the dimension is smaller.
_NARROW = {False: 16, True: 32}


def cute_rows(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe tile with a height mostly beyond M (swapped: N); on sm_90 also any upright tile for at most 32 rows of A.

    genkern: as wgmma_rows. Upright families have the 64 rows of wgmma along M. The tcgen05 family has no swapped form
    for few rows, so its tiles of 64 rows (128 for two programs) are kept.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None:
        return False
    along, _ = tile_wave.sides(problem.M, problem.N)
    rows, _ = tile_wave.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    if tile_wave.swaps_for_few and problem.M <= _FEW_ROWS:
        return True
    return max(64 * tile_wave.programs_of_tile, covering_block(along)) < rows


def cute_width(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe tile that is wider than N (swapped: than M), rounded up to the step of widths.

    genkern: columns beyond the dimension are multiplied in vain. For the smallest dimensions the smallest width of the
    space is kept.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None:
        return False
    _, along = tile_wave.sides(problem.M, problem.N)
    _, width = tile_wave.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    return max(_NARROW[tile_wave.swapped], _rounded(along, tile_wave.width_step)) < width


def cute_tile_small(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe tile with fewer elements per program than 128x128, in more than four waves.

    genkern: as wgmma_tile_small. Fewer and larger tiles read less, and divide among the SMs just as well.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None:
        return False
    elements = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N
    is_small = elements < _SQUARE_TILE * tile_wave.programs_of_tile
    return is_small & (tiles(problem, configs) * tile_wave.programs_of_tile > _MANY_WAVES * gpu.compute_units)


def cute_stages(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe ring that leaves room for another stage, up to 12.

    genkern: stages hide the latency of memory, and a program that has its SM alone has no other use for shared memory.
    """
    traits = traits_of(configs)
    if traits.cost.tile_wave is None or traits.stages is None:
        return False
    has_room = configs.num_stages < _DEEP_RING
    for refused, _ in traits.stages(problem, configs.with_values(num_stages=configs.num_stages + 1), gpu):
        has_room = has_room & negated(refused)
    return has_room


def cute_wave(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe tile with a side that is not a power of two and leaves over 20 % of the last wave's clusters idle.

    genkern: as width_fills_nothing, by clusters. Such sides exist to cut C so that it fills the SMs. Widths with which
    the tiles of a cluster just cover N or M are kept if the height is a power of two (cuBLASLt uses 64x96 in clusters
    of 4x2 for 2984x184x4792). cuBLASLt also uses 128x160 for 3456x624x640 and 256x96 for 288x9312x424, which are 110
    and 111 tiles for 132 SMs, so a fifth may be idle.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None:
        return False
    _, along = tile_wave.sides(problem.M, problem.N)
    height, width = tile_wave.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    is_usual = (height & (height - 1) == 0) & _is_usual_width(tile_wave, width, along)
    fills = _turns(problem, configs) >= _LEAST_FILL * _waves(problem, configs, gpu) * tile_wave.at_once(
        gpu.compute_units
    )
    return negated(is_usual | fills)


def cute_fitted(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe tile whose width is not a power of two, if a narrower, equally aligned one needs as many waves.

    genkern: for use in spaces that list all widths, as genkern's do, since cuBLASLt has kernels of every width that is
    a multiple of 8. Of the tiles of one height that need equally many waves of clusters, the narrowest one multiplies
    least. If an operand is contiguous along the width, every second tile of width 136 starts 16 bytes off a sector of
    L2: on an H200, 3456x624x640 NT took 10.0 us with width 136 and 8.2 with 160; in another run 7.8 with 160 and 7.6
    with 144.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None:
        return False
    _, along = tile_wave.sides(problem.M, problem.N)
    height, width = tile_wave.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    step: Column = tile_wave.width_step
    if turned(problem, tile_wave.swapped)[1]:
        # Rows of such an operand are as long as this side of C, so no tile starts at a better alignment than the rows.
        step = most(step, least(min(TURNED_BOX, along & -along), width & -width))
    # No tile is narrower than a step; the number keeps the formula below defined.
    narrower = tile_wave.sides(height, most(1, width - step))
    as_many_waves = _waves(problem, configs, gpu, narrower) == _waves(problem, configs, gpu)
    return negated(_is_usual_width(tile_wave, width, along)) & (width > step) & as_many_waves


def _is_usual_width(tile_wave: TileWave, width: Column, along: int) -> Mask:
    """Return whether a width is a power of two, or the smallest one with which a cluster covers this side of C."""
    return (width & (width - 1) == 0) | (width == _covering(tile_wave, along))


def _covering(tile_wave: TileWave, along: int) -> int:
    """Return the smallest width with which the tiles of one cluster cover this side of C."""
    _, beside = tile_wave.sides(tile_wave.tiles_m, tile_wave.tiles_n)
    return _rounded(-(-along // beside), tile_wave.width_step)


def _turns(problem: GemmProblem, configs: ConfigTable, tile: tuple[Column, Column] | None = None) -> Column:
    """Return the number of cluster steps: in one step a cluster computes its tiles, or one part of K of them.

    `tile` replaces BLOCK_SIZE_M and BLOCK_SIZE_N.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    assert tile_wave is not None
    block_m, block_n = tile or (configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    turns = -(-problem.M // (block_m * tile_wave.tiles_m)) * -(-problem.N // (block_n * tile_wave.tiles_n))
    return problem.batch * configs.SPLIT_K * turns


def _waves(problem: GemmProblem, configs: ConfigTable, gpu: Gpu, tile: tuple[Column, Column] | None = None) -> Column:
    tile_wave = traits_of(configs).cost.tile_wave
    assert tile_wave is not None
    return -(-_turns(problem, configs, tile) // tile_wave.at_once(gpu.compute_units))


def cute_cluster_empty(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe cluster with more tiles along M or N than C has.

    genkern: its other programs would load and multiply padding beyond C.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None:
        return False
    along_m, along_n = -(-problem.M // configs.BLOCK_SIZE_M), -(-problem.N // configs.BLOCK_SIZE_N)
    return (tile_wave.tiles_m > along_m) | (tile_wave.tiles_n > along_n)


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


def cute_large_cluster(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe cluster of four or more programs in more than one wave (two if rows of A or B do not start at 128 bytes).

    genkern: an H200 runs 30 clusters of four or 15 of eight at the same time, which is 120 of 132 SMs. Clusters pay if
    a TMA box needs two lines of L2 instead of one, or if there is only one wave (100x6144x8192 on an H200: 29.6 us with
    120 tiles in clusters of eight, 31.5 without clusters).
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None or tile_wave.programs < _LARGE_CLUSTER:
        return False
    pitches = (problem.K if problem.row_major_a else problem.M, problem.N if problem.row_major_b else problem.K)
    sizes = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes
    aligned = all(pitch * size % _LINE_BYTES == 0 for pitch, size in zip(pitches, sizes, strict=True))
    return _waves(problem, configs, gpu) > (1 if aligned else 2)


def cute_parts(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe kernel whose parts of K take more than one wave of clusters, or are shorter than four K-blocks.

    genkern: splits give work to idle SMs. A shorter part ends before its ring is full.
    """
    if traits_of(configs).cost.tile_wave is None:
        return False
    short = configs.SPLIT_K * _LEAST_PART_BLOCKS * configs.BLOCK_SIZE_K > problem.K
    return (configs.SPLIT_K != 1) & (short | (_waves(problem, configs, gpu) > 1))


def cute_direct(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """CuTe kernel that stores C from registers although TMA could store it.

    genkern: direct stores write 4 bytes of each of 8 rows at a time. NVIDIA's guide tries both ways (use_tma_store).
    Sums of a split K can be stored only from registers.
    """
    tile_wave = traits_of(configs).cost.tile_wave
    if tile_wave is None or tile_wave.tma_store or tma_output_limit(problem):
        return False
    return DTYPES[problem.dtype_c].size_bytes in tile_wave.tma_stores and configs.SPLIT_K == 1
