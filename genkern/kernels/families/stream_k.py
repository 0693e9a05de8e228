"""stream_k: as many programs as the device has units; those tiles that make no full wave are shared by all."""

from __future__ import annotations

from genkern.kernels.expression import name, where
from genkern.kernels.families.call import (
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
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
    leading,
    main_kernel,
    masked_variant,
    sizes,
    sums,
)

SHARED = name("shared")


def _call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    kernel = main_kernel(variant, (*pointers, *sizes(product), *leading(product, "abc"), GROUP), UNITS)
    # Each program has a piece of two of the shared tiles at most.
    elements = where(SHARED, (UNITS + SHARED) * BLOCK_SIZE_M * BLOCK_SIZE_N, 0)
    return Call((kernel,), (TILES_OF_C, ("shared", TILES % UNITS)), elements, SHARED)


STREAM_K = Family("stream_k", masked_variant, _call, runs_on_amd=True)
