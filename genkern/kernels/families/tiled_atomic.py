"""tiled_atomic: one program for each tile of C and split of K; all add to one matrix, in no order."""

from __future__ import annotations

from genkern.kernels.argument import Argument, Integer, Pointer, Workspace
from genkern.kernels.families.call import SPLIT_K, TILES, TILES_OF_C, Call, Family, M, N, Product, Variant
from genkern.kernels.families.common import (
    GROUP,
    POINTERS,
    SPLITS,
    leading,
    main_kernel,
    masked_variant,
    reduction,
    sizes,
    zero_fill,
)


def _call(product: Product, variant: Variant) -> Call:
    # What is added to is C itself where C is what the sums are.
    pointer: Argument = Pointer("sum_ptr", "c")
    ld_sum: Argument = product.leading("ld_sum", "c")
    if not product.sums_are_c:
        pointer = Workspace("sum_ptr", product.accumulator)
        ld_sum = Integer("ld_sum", N, aligns=product.problem.N % 16 == 0)
    arguments = (*POINTERS, pointer, *product.in_step, *sizes(product), *leading(product, "ab"), ld_sum, GROUP, SPLITS)
    kernels = zero_fill(product, (pointer, ld_sum)), main_kernel(variant, arguments, TILES, SPLIT_K)
    if product.sums_are_c:
        return Call(kernels, (TILES_OF_C,))
    # One split is left to reduce: the sum.
    return Call((*kernels, reduction(product, 1)), (TILES_OF_C,), workspace=M * N)


TILED_ATOMIC = Family(
    "tiled_atomic",
    masked_variant,
    _call,
    splits_k=True,
    runs_on_amd=True,
    deterministic=False,
    kernels_before=1,
)
