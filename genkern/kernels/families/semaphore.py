"""tiled_semaphore and tiled_swapped: a program for each tile of C and split of K; a tile's last one adds them up."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.families.call import SPLIT_K, TILES, TILES_OF_C, Call, Family, Product, Variant
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
from genkern.kernels.families.limits import dot_limit, grid_limit, splits_limit, tiles


def _call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), GROUP, SPLITS)
    kernel = main_kernel(variant, arguments, TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    swapped = config.family == TILED_SWAPPED.name
    return dot_limit(problem, config, gpu, swapped=swapped) or grid_limit(tiles(problem, config), config.num_warps, gpu)


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
