"""tiled_tma and tiled_tma_swapped: as tiled_semaphore and tiled_swapped, with operands through TMA."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.families.call import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    Call,
    Family,
    Product,
    Variant,
)
from genkern.kernels.families.common import (
    C_POINTER,
    GROUP,
    SPLIT_TILES,
    SPLITS,
    leading,
    main_kernel,
    masked_variant,
    of_groups,
    sizes,
    sums,
    when_split,
)
from genkern.kernels.families.limits import INT32, dot_limit, splits_limit, tma_box_limit, tma_operands_limit
from genkern.ops.op import groups_of


def _variant(problem: GemmProblem, config: Config) -> Variant:
    # Rows that are gathered come through pointers.
    groups = groups_of(problem)
    return masked_variant(problem, config, clips_k=groups is None or not groups.gathered)


def _call(product: Product, variant: Variant) -> Call:
    a = product.descriptor("a_desc", "a", (BLOCK_SIZE_M, BLOCK_SIZE_K))
    b = product.descriptor("b_desc", "b", (BLOCK_SIZE_K, BLOCK_SIZE_N))
    if product.groups and product.groups.sorted_slots:
        return of_groups(product, variant, a, b, (GROUP, SPLITS), TILES, SPLIT_K)
    numbers = (*sizes(product), *leading(product, "c"), GROUP, SPLITS)
    kernel = main_kernel(variant, (a, b, C_POINTER, *sums(product), *product.extra, *numbers), TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """In a batch a descriptor is of all matrices, one below the other: what overhangs is the next one's. Weights of
    groups lie so too.
    """
    if problem.batch > 1 or groups_of(problem) is not None:
        if problem.row_major_b or not problem.row_major_a:
            return "in a batch TMA reads zeros beyond K only where rows run along K (rowMajorA: T, rowMajorB: N)"
        if problem.batch * max(problem.M, problem.N) >= INT32 // 2:
            return "the batch has more rows than 32 bits count"
    return tma_operands_limit(problem, gpu)


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    swapped = config.family == TILED_TMA_SWAPPED.name
    return tma_box_limit(problem, config) or dot_limit(problem, config, gpu, swapped=swapped)


# C goes through pointers, so that its rows may start anywhere.
TILED_TMA = Family(
    "tiled_tma",
    _variant,
    _call,
    takes=_takes,
    legal=_legal,
    shares=splits_limit,
    uses_tma=True,
    splits_k=True,
    has_semaphore=True,
    batches=True,
    groups=True,
    gathers=True,
)
TILED_TMA_SWAPPED = Family(
    "tiled_tma_swapped",
    _variant,
    _call,
    takes=_takes,
    legal=_legal,
    shares=splits_limit,
    uses_tma=True,
    splits_k=True,
    has_semaphore=True,
    batches=True,
    swaps_operands=True,
    least_block_m=8,
)
