"""tiled_tma and tiled_tma_swapped: as tiled_semaphore and tiled_swapped, with operands through TMA."""

from __future__ import annotations

from genkern.gemm.config import Config
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
    sizes,
    sums,
    when_split,
)


def _variant(problem: GemmProblem, config: Config) -> Variant:
    return masked_variant(problem, config, clips_k=True)


def _call(product: Product, variant: Variant) -> Call:
    a = product.descriptor("a_desc", "a", (BLOCK_SIZE_M, BLOCK_SIZE_K))
    b = product.descriptor("b_desc", "b", (BLOCK_SIZE_K, BLOCK_SIZE_N))
    numbers = (*sizes(product), *leading(product, "c"), GROUP, SPLITS)
    kernel = main_kernel(variant, (a, b, C_POINTER, *sums(product), *product.extra, *numbers), TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


TILED_TMA = Family("tiled_tma", _variant, _call, uses_tma=True, splits_k=True, has_semaphore=True)
TILED_TMA_SWAPPED = Family(
    "tiled_tma_swapped",
    _variant,
    _call,
    uses_tma=True,
    splits_k=True,
    has_semaphore=True,
    swaps_operands=True,
    least_block_m=8,
)
