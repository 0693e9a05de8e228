"""Pruning rules about the families in Gluon: warp_specialized, its swapped form, and its forms with clusters.

A rule returns True to drop a configs. If a rule says H200, its figures come from timing warp_specialized there
(docs/kernels.md).
"""

from __future__ import annotations

from genkern.gemm.columns import Mask, either, least, most, negated, within
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides, together, traits_of
from genkern.kernels.contract.gluon_tile import STORED, buffer_bytes, landing_bytes, scale_bytes, turned
from genkern.kernels.families.limits import units_in_clusters
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import get_op, groups_of
from genkern.space.rules.tiles import covering_block, tiles

# Bytes of the block behind a ring that holds its barriers; bytes that Triton reserves and that buffers lose to
# alignment.
_BARRIER_BYTES = 1024
_SLACK_BYTES = 1024
# A ring of this many buffers hides the latency of memory.
_DEEP_RING = 12
# Share of the last wave's programs that must have a tile, for widths that exist only to fill it.
_LEAST_FILL = 0.85
# SPLIT_K pays only if at most this share of the last wave's SMs has a tile.
_MOST_FILL = 0.9
# Tiles smaller than this are dropped if they make more than _MANY_WAVES waves.
_SQUARE_TILE = 128 * 128
_MANY_WAVES = 4
# K-blocks that a program of a cluster should have, so that its ring fills.
_LEAST_BLOCKS = 4
# Rows of a cluster's tile from which it may have neighbours along M, and the share of the SMs that the clusters then
# must use.
_LEAST_ROWS_BESIDE = 64
_LEAST_SHARE = 0.7
# Bytes of a line of L2.
_LINE_BYTES = 128
# Largest number of full waves before the wave that is shared. After more waves, sharing it matters little.
_MOST_WHOLE_WAVES = 4


def _element_bytes(problem: GemmProblem) -> int:
    return DTYPES[problem.dtype_a].size_bytes


def _sized(problem: GemmProblem, configs: ConfigTable) -> tuple[int, int]:
    """Return the dimensions along the tile's height and width: (M, N), or (N, M) if swapped.

    For rows in groups, M is a number of rows that few groups exceed.
    """
    groups = groups_of(problem)
    rows = problem.M if groups is None else groups.usual_rows(problem.M)
    return (problem.N, rows) if traits_of(configs).swapped else (rows, problem.N)


def _covers(problem: GemmProblem, configs: ConfigTable) -> Mask:
    """Return whether the tile's width is the smallest one that covers its dimension."""
    return (_sized(problem, configs)[1] <= sides(configs)[1]) & _cuts_evenly(problem, configs)


def _cuts_evenly(problem: GemmProblem, configs: ConfigTable) -> Mask:
    """Return whether the tile's width is the smallest one that cuts its dimension into this number of tiles."""
    _, width = sides(configs)
    step = traits_of(configs).sides.width_step
    along = _sized(problem, configs)[1]
    return width == -(-along // -(-along // width) // step) * step


def wgmma_rows(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon tile whose rows lie mostly beyond their dimension.

    genkern: tiles of 64 rows are kept, except upright tiles for at most 32 rows of A: the tensor cores are idle anyway
    then, and the swapped form wastes less.
    """
    if not traits_of(configs).in_ring:
        return False
    rows, _ = sides(configs)
    along, _ = _sized(problem, configs)
    return (rows > max(64, covering_block(along))) | (not traits_of(configs).swapped and along <= 32)


def wgmma_width(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon tile that is wider than its dimension, rounded up to the step of widths.

    genkern: the columns beyond the dimension are multiplied in vain. Widths of up to two steps are always kept.
    """
    if not traits_of(configs).in_ring:
        return False
    _, width = sides(configs)
    step = traits_of(configs).sides.width_step
    return width > max(2 * step, -(-_sized(problem, configs)[1] // step) * step)


def wgmma_tile_small(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon tile with fewer elements than 128x128, in more than four waves.

    genkern: fewer and larger tiles read less, and divide among the SMs just as well (H200: no winner of 88 sizes was
    smaller). Tiles that have all rows of a group already read each weight only once.
    """
    if not traits_of(configs).in_ring:
        return False
    is_small = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N < _SQUARE_TILE
    if (groups := groups_of(problem)) is not None:
        is_small = is_small & (problem.M * groups.top_k / groups.count > configs.BLOCK_SIZE_M)
    return is_small & (tiles(problem, configs) > _MANY_WAVES * gpu.compute_units)


def wgmma_accumulators(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon tile with over 200 accumulators per thread, or with under 16 unless it covers its dimension.

    genkern: a multiplying thread has 240 registers after the loading warp has given up its own; about 40 hold
    addresses. With fewer than 16 accumulators, waiting for a buffer takes longer than multiplying it. If products are
    promoted, a thread holds the products of 64 rows besides the sums. In a swapped tile with scales it also holds two
    scales for every eight columns; accumulators, products and scales together may be up to 232.
    """
    if not traits_of(configs).in_ring:
        return False
    each = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N / (32 * configs.num_warps)
    _, width = sides(configs)
    scaled = get_op(problem.op).promoted(problem)
    beside = width / 2 if scaled or promotes_products(problem, gpu.arch) else 0
    scales = width / 4 if scaled and traits_of(configs).swapped else 0
    too_many = (each + beside > 200) | (each + beside + scales > 232)
    return too_many | ((each < 16) & negated(_covers(problem, configs)))


def wgmma_shared_memory(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon ring that does not fit, or leaves room for two more stages while it has fewer than 12.

    genkern: deeper rings were never slower up to twelve buffers (H200; 24 were, for a short K). So only the two deepest
    rings that fit are tried, and from 11 stages on all that fit. If several buffers are filled together, only the
    deepest ring up to twelve buffers is tried, and it must have three such fillings (with six buffers filled four at a
    time: 16.3 us instead of 12.9 at 256x7168x2048). In addition to the ring there are a buffer for C and, in a cluster,
    the sums of other programs.
    """
    if not traits_of(configs).in_ring:
        return False
    rows, width = sides(configs)
    swapped = traits_of(configs).swapped
    buffer = buffer_bytes(rows, width, turned(problem, swapped)[1])
    if (op := get_op(problem.op)).promoted(problem):
        buffer += scale_bytes(rows, width, swapped, op.shared_scale(problem)[1])
    # Programs with tiles side by side need not have room for all of C.
    held = width if traits_of(configs).cluster == (1, 1) else 2 * STORED[-1] + width % STORED[-1]
    c_bytes = rows * least(width, held) * DTYPES[problem.dtype_c].size_bytes
    others = landing_bytes(rows, width, traits_of(configs).cluster_k)
    fit = (gpu.shared_bytes_per_block - c_bytes - others - _BARRIER_BYTES - _SLACK_BYTES) // buffer
    at_once = most(1, together(configs, _element_bytes(problem)))
    deepest = least(fit, _DEEP_RING) // at_once
    stages = configs.num_stages
    return either(at_once > 1, (stages < 3) | (stages != deepest), negated(within(deepest - 1, stages, fit)))


def wgmma_together(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon tile with BLOCK_SIZE_K above the 128 bytes of one buffer that does not cover its dimension.

    genkern: buffers are filled together so that neighbouring memory is requested at the same time. That matters if
    nearly all of a call is reading weights (H200: 3 % at 3x10240x7168, 4 % at 64x6144x4096).
    """
    if not traits_of(configs).in_ring:
        return False
    return (together(configs, _element_bytes(problem)) > 1) & negated(_covers(problem, configs))


def width_fills_nothing(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Width that is not a power of two and leaves more than 15 % of the programs of the last wave without a tile.

    genkern: such widths exist to cut C so that it fits the SMs, or to just cover a dimension.
    """
    if not traits_of(configs).in_ring:
        return False
    _, width = sides(configs)
    count = tiles(problem, configs)
    waves = -(-count // gpu.compute_units)
    # With SPLIT_K all programs share the remaining tiles, so none is idle, whatever the width is.
    is_meant_to_fill = (width & (width - 1) != 0) & (configs.SPLIT_K == 1) & negated(_covers(problem, configs))
    return is_meant_to_fill & (count < _LEAST_FILL * waves * gpu.compute_units)


def cluster_shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Cluster whose programs have under four K-blocks each, are more than run at the same time, or cut M narrowly.

    genkern: K-blocks have BLOCK_SIZE_K elements. Clusters give idle SMs a share of K; with more tiles than that,
    programs without a cluster need no exchange of sums. A tile covers all of M, or cuts it evenly into at least 64 rows
    if the programs take 70 % of the SMs (H200, 632x136x4584 TT: 7.6 us with 15 clusters of eight, 10.1 with tiled_tma).
    Two narrow tiles of the same weights are faster in neighbouring programs, where one request serves two SMs, than in
    clusters, whose programs have different K-blocks (H200, 64x1280x8192, 80 programs: 13.8 us with two for each tile of
    32x64, 9.6 with four for each of 64x64).
    """
    if (cluster := traits_of(configs).cluster_k) == 1:
        return False
    programs = tiles(problem, configs) * cluster
    cuts_well = (
        (configs.BLOCK_SIZE_M >= _LEAST_ROWS_BESIDE)
        & _cuts_evenly(problem, configs)
        & (programs >= _LEAST_SHARE * gpu.compute_units)
    )
    cuts_narrowly = negated(_covers(problem, configs) | cuts_well)
    blocks = -(-problem.K // configs.BLOCK_SIZE_K)
    return (
        cuts_narrowly | (blocks < _LEAST_BLOCKS * cluster) | (programs > units_in_clusters(gpu.compute_units, cluster))
    )


def neighbours_share_nothing(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Cluster of tiles side by side if rows of A and B start at 128 bytes, or if C has fewer tiles than the cluster.

    genkern: for other rows a TMA box requests two lines of L2 instead of one, and the path into the SMs is the limit.
    For rows at 128 bytes, L2 serves neighbouring programs together anyway (H200).
    """
    along_m, along_n = traits_of(configs).cluster
    if along_m * along_n == 1:
        return False
    pitches = (problem.K if problem.row_major_a else problem.M, problem.N if problem.row_major_b else problem.K)
    if all(pitch * _element_bytes(problem) % _LINE_BYTES == 0 for pitch in pitches):
        return True
    few_m = along_m > -(-problem.M // configs.BLOCK_SIZE_M)
    return few_m | (along_n > -(-problem.N // configs.BLOCK_SIZE_N))


def wgmma_shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Gluon kernel with SPLIT_K if sharing the last tiles does not help.

    genkern: programs share the tiles beyond the last full wave, SPLIT_K programs per tile, at most one per SM. That
    helps if such tiles exist, leave over 10 % of their wave idle, follow at most four full waves, and keep 85 % of the
    SMs busy when shared. Once every SM has a share, a larger SPLIT_K changes nothing.
    """
    if not traits_of(configs).in_ring:
        return False
    units, split_k = gpu.compute_units, configs.SPLIT_K
    whole, rest = divmod(tiles(problem, configs), units)
    useless = (rest == 0) | (rest > _MOST_FILL * units) | (whole > _MOST_WHOLE_WAVES)
    return (split_k != 1) & (useless | (rest * split_k < _LEAST_FILL * units) | (rest * (split_k - 1) >= units))
