"""tiled_semaphore and tiled_swapped: a program for each tile of C and split of K; a tile's last one adds them up."""

from __future__ import annotations

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


def _call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), GROUP, SPLITS)
    kernel = main_kernel(variant, arguments, TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


TILED_SEMAPHORE = Family("tiled_semaphore", masked_variant, _call, splits_k=True, runs_on_amd=True, has_semaphore=True)
TILED_SWAPPED = Family(
    "tiled_swapped",
    masked_variant,
    _call,
    splits_k=True,
    runs_on_amd=True,
    has_semaphore=True,
    swaps_operands=True,
    least_block_m=8,
)
