"""tiled_semaphore and tiled_swapped: a program for each tile of C and split of K; a tile's last one adds them up.

stream_k: as many programs as the device has units; those tiles that make no full wave are shared by all.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.expression import name, where
from genkern.kernels.families.call import (
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    UNITS,
    Call,
    Family,
    Product,
    Variant,
)
from genkern.kernels.families.common import (
    C_POINTER,
    GROUP,
    POINTERS,
    SPLIT_TILES,
    SPLITS,
    leading,
    main_kernel,
    masked_variant,
    sizes,
    sums,
    when_split,
)
from genkern.kernels.families.limits import INT32, dot_limit, grid_limit, splits_limit, tiles

SHARED = name("shared")


def _call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), GROUP, SPLITS)
    kernel = main_kernel(variant, arguments, TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    swapped = config.family == TILED_SWAPPED.name
    return dot_limit(problem, config, gpu, swapped=swapped) or grid_limit(tiles(problem, config), config.num_warps, gpu)


def _stream_k_call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    kernel = main_kernel(variant, (*pointers, *sizes(product), *leading(product, "abc"), GROUP), UNITS)
    # Each program has a piece of two of the shared tiles at most.
    elements = where(SHARED, (UNITS + SHARED) * BLOCK_SIZE_M * BLOCK_SIZE_N, 0)
    return Call((kernel,), (TILES_OF_C, ("shared", TILES % UNITS)), elements, SHARED)


def _stream_k_shares(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """The K-blocks of the tiles beyond the last full wave are numbered."""
    if gpu is None:
        return ""
    blocks = tiles(problem, config) % gpu.compute_units * -(-problem.K // config.BLOCK_SIZE_K)
    return "more K-blocks to share than 32 bits count" if blocks >= INT32 else ""


TILED_SEMAPHORE = Family(
    "tiled_semaphore",
    masked_variant,
    _call,
    legal=_legal,
    shares=splits_limit,
    splits_k=True,
    runs_on_amd=True,
    has_semaphore=True,
    batches=True,
)
TILED_SWAPPED = Family(
    "tiled_swapped",
    masked_variant,
    _call,
    legal=_legal,
    shares=splits_limit,
    splits_k=True,
    runs_on_amd=True,
    has_semaphore=True,
    swaps_operands=True,
    least_block_m=8,
    batches=True,
)
STREAM_K = Family(
    "stream_k", masked_variant, _stream_k_call, legal=dot_limit, shares=_stream_k_shares, runs_on_amd=True
)
