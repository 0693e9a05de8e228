"""tiled_tma and tiled_tma_swapped: as tiled_semaphore and tiled_swapped, with operands through TMA.

split_tma: tiled_tma whose splits of K a second kernel adds up, as those of tiled.
"""

from __future__ import annotations

from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import Descriptor, Workspace
from genkern.kernels.families.call import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    Call,
    Family,
    M,
    N,
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
    reduction,
    sizes,
    sums,
    when_split,
)
from genkern.kernels.families.limits import (
    INT32,
    dot_limit,
    over_c_limit,
    splits_limit,
    tma_box_limit,
    tma_operands_limit,
)
from genkern.ops.op import groups_of


def _variant(problem: GemmProblem, config: Config) -> Variant:
    # Rows that are gathered come through pointers.
    groups = groups_of(problem)
    return masked_variant(problem, config, clips_k=groups is None or not groups.gathered)


def _operands(product: Product) -> tuple[Descriptor, Descriptor]:
    a = product.descriptor("a_desc", "a", (BLOCK_SIZE_M, BLOCK_SIZE_K))
    return a, product.descriptor("b_desc", "b", (BLOCK_SIZE_K, BLOCK_SIZE_N))


def _call(product: Product, variant: Variant) -> Call:
    a, b = _operands(product)
    if product.groups and product.groups.sorted_slots:
        return of_groups(product, variant, a, b, (GROUP, SPLITS), TILES, SPLIT_K)
    numbers = (*sizes(product), *leading(product, "c"), GROUP, SPLITS)
    kernel = main_kernel(variant, (a, b, C_POINTER, *sums(product), *product.extra, *numbers), TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _split_variant(problem: GemmProblem, config: Config) -> Variant:
    variant = masked_variant(problem, config, split=config.SPLIT_K > 1, clips_k=True)
    return replace(variant, template="gemm/tiled_tma.py.j2")


def _split_call(product: Product, variant: Variant) -> Call:
    if not variant.split:
        return _call(product, variant)
    partial = Workspace("partial_ptr", product.accumulator)
    arguments = (*_operands(product), partial, *product.in_step, *sizes(product), GROUP, SPLITS)
    kernels = main_kernel(variant, arguments, TILES, SPLIT_K), reduction(product, SPLIT_K)
    return Call(kernels, (TILES_OF_C,), workspace=SPLIT_K * M * N)


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


def _split_shares(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    return splits_limit(problem, config, gpu) or (over_c_limit(problem, gpu) if config.SPLIT_K > 1 else "")


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
# With one split it is tiled_tma; spaces begin at two.
SPLIT_TMA = Family(
    "split_tma",
    _split_variant,
    _split_call,
    takes=_takes,
    legal=_legal,
    shares=_split_shares,
    uses_tma=True,
    splits_k=True,
    split_apart=True,
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
