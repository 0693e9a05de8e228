"""Pruning rules of the families in CuTe DSL.

A rule returns True for a config to drop. Where a rule says H200, its figures come from timing these families there
(docs/cute.md). On sm_100 nothing has been timed: the rules that nvidia_sm100_cute.yaml names are those whose reason is
no measurement.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of
from genkern.kernels.contract.cost import Turn
from genkern.kernels.families.gluon_tile import TURNED_BOX, turned
from genkern.kernels.families.limits import tma_output_limit
from genkern.space.rules.tiles import covering_block, tiles

# From so few rows on the tensor cores are idle anyway, and tiles upright in N (swapped families) waste less.
_FEW_ROWS = 32
_SQUARE_TILE = 128 * 128
_MANY_WAVES = 4
# Share of the last wave's programs that must have a tile, for widths that exist only to fill it.
_LEAST_FILL = 0.8
# Of a part of K.
_LEAST_PART_BLOCKS = 4
# Stages beyond which none was faster.
_DEEP_RING = 12
# From so many programs on clusters, which leave SMs over (units_in_clusters), are for one wave, or two.
_LARGE_CLUSTER = 4
# What L2 hands out.
_LINE_BYTES = 128
# The least width that fewer rows or columns than this may have: of upright tiles, and of swapped ones.
_NARROW = {False: 16, True: 32}


def cute_rows(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile whose rows are mostly beyond M (swapped: N), or on sm_90 any upright one for at most 32 rows of A.

    genkern: as wgmma_rows; upright families have the 64 rows of wgmma along M. Those of tcgen05 have no swapped sibling
    for few rows, and keep theirs of 64, or of 128 for two programs.
    """
    turn = form_of(config).cost.turn
    if turn is None:
        return False
    along, _ = turn.sides(problem.M, problem.N)
    rows, _ = turn.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    few = turn.swaps_for_few and problem.M <= _FEW_ROWS
    return few or max(64 * turn.programs_of_tile, covering_block(along)) < rows


def cute_width(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile that is wider than N (swapped: than M), rounded up to what widths are multiples of.

    genkern: what is beyond it is multiplied for nothing. For the fewest rows the least width of the space stays.
    """
    turn = form_of(config).cost.turn
    if turn is None:
        return False
    _, along = turn.sides(problem.M, problem.N)
    _, width = turn.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    return max(_NARROW[turn.swapped], _rounded(along, turn.width_step)) < width


def cute_tile_small(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile of fewer elements a program than 128x128 in over four waves of them.

    genkern: as wgmma_tile_small: fewer and larger tiles read less, and are no harder to deal out.
    """
    turn = form_of(config).cost.turn
    if turn is None or _SQUARE_TILE * turn.programs_of_tile <= config.BLOCK_SIZE_M * config.BLOCK_SIZE_N:
        return False
    return tiles(problem, config) * turn.programs_of_tile > _MANY_WAVES * gpu.compute_units


def cute_stages(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe ring that leaves room for another stage, up to 12.

    genkern: stages hide the latency of memory, and shared memory is of no other use to a program that has its SM alone.
    """
    form = form_of(config)
    if form.cost.turn is None or form.stages is None or config.num_stages >= _DEEP_RING:
        return False
    return not form.stages(problem, config, gpu)(config.num_stages + 1)


def cute_wave(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile with a side that is no power of two and leaves over 20 % of the last wave's clusters idle.

    genkern: as width_fills_nothing, by clusters: such sides are there to cut C to fill the SMs, or, if they are widths,
    for the tiles of a cluster to cover N or M (cuBLASLt has 64x96 in clusters of 4x2 for 2984x184x4792). It has 128x160
    for 3456x624x640 and 256x96 for 288x9312x424, 110 and 111 tiles for 132 SMs, so a fifth may be idle.
    """
    turn = form_of(config).cost.turn
    if turn is None:
        return False
    _, along = turn.sides(problem.M, problem.N)
    height, width = turn.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    if height & (height - 1) == 0 and (width & (width - 1) == 0 or width == _covering(turn, along)):
        return False
    return _turns(problem, config) < _LEAST_FILL * _waves(problem, config, gpu) * turn.at_once(gpu.compute_units)


def cute_fitted(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe tile of a width off powers of two, where a narrower one is as well aligned and needs as many waves.

    genkern: the library's kernels have widths of all multiples of 8; of those of one height that cut C into as many
    waves of clusters the narrowest multiplies least. Where an operand runs along the width, every second tile of 136
    begins 16 bytes off a sector of L2: on an H200 3456x624x640 NT took 10.0 us by these and 8.2 by tiles of 160, in
    another call 7.8 by 160 and 7.6 by 144. It is for spaces with all widths, as ours.
    """
    turn = form_of(config).cost.turn
    if turn is None:
        return False
    _, along = turn.sides(problem.M, problem.N)
    height, width = turn.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    if width & (width - 1) == 0 or width == _covering(turn, along):
        return False
    step = turn.width_step
    if turned(problem, turn.swapped)[1]:
        # Rows of such an operand are as long as this side of C: none begins better than they do.
        step = max(step, min(TURNED_BOX, width & -width, along & -along))
    if width <= step:
        return False
    narrower = turn.sides(height, width - step)
    return _waves(problem, config, gpu, narrower) == _waves(problem, config, gpu)


def _covering(turn: Turn, along: int) -> int:
    """The least width with which the tiles of one cluster have all of this side of C."""
    _, beside = turn.sides(turn.tiles_m, turn.tiles_n)
    return _rounded(-(-along // beside), turn.width_step)


def _turns(problem: GemmProblem, config: Config, tile: tuple[int, int] | None = None) -> int:
    """Of clusters, each of which makes its tiles, or a part of K of them, once a turn; `tile`: if tiles were such."""
    turn = form_of(config).cost.turn
    assert turn is not None
    block_m, block_n = tile or (config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    turns = -(-problem.M // (block_m * turn.tiles_m)) * -(-problem.N // (block_n * turn.tiles_n))
    return problem.batch * config.SPLIT_K * turns


def _waves(problem: GemmProblem, config: Config, gpu: Gpu, tile: tuple[int, int] | None = None) -> int:
    turn = form_of(config).cost.turn
    assert turn is not None
    return -(-_turns(problem, config, tile) // turn.at_once(gpu.compute_units))


def cute_cluster_empty(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe cluster with more tiles along M or N than there are.

    genkern: the others would load and multiply what lies beyond C.
    """
    turn = form_of(config).cost.turn
    if turn is None:
        return False
    along_m, along_n = -(-problem.M // config.BLOCK_SIZE_M), -(-problem.N // config.BLOCK_SIZE_N)
    return turn.tiles_m > along_m or turn.tiles_n > along_n


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


def cute_large_cluster(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe cluster of four or eight in more than one wave of them, or two where rows of A or B begin off 128 bytes.

    genkern: an H200 runs 30 clusters of four at a time, or 15 of eight: 120 of 132 SMs. What they save counts where a
    box of the copy engine asks for two lines of L2 where it needs one, and where one wave is all there is
    (100x6144x8192 there: 29.6 us by 120 tiles in clusters of eight, 31.5 without), as of all that won on an H200.
    """
    turn = form_of(config).cost.turn
    if turn is None or turn.programs < _LARGE_CLUSTER:
        return False
    pitches = (problem.K if problem.row_major_a else problem.M, problem.N if problem.row_major_b else problem.K)
    sizes = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes
    aligned = all(pitch * size % _LINE_BYTES == 0 for pitch, size in zip(pitches, sizes, strict=True))
    return _waves(problem, config, gpu) > (1 if aligned else 2)


def cute_parts(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe kernel whose parts of K are more than one wave of clusters, or shorter than four K-blocks.

    genkern: splits are there to give work to idle SMs; a shorter part is over before its ring is full.
    """
    if form_of(config).cost.turn is None or config.SPLIT_K == 1:
        return False
    short = config.SPLIT_K * _LEAST_PART_BLOCKS * config.BLOCK_SIZE_K > problem.K
    return short or _waves(problem, config, gpu) > 1


def cute_direct(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """CuTe kernel that stores C from registers where the copy engine could.

    genkern: it writes 4 bytes of each of 8 rows at a time; NVIDIA's guide tries both (use_tma_store). Sums of a split K
    go no other way.
    """
    turn = form_of(config).cost.turn
    if turn is None or turn.tma_store or config.SPLIT_K > 1:
        return False
    return DTYPES[problem.dtype_c].size_bytes in turn.tma_stores and not tma_output_limit(problem)
