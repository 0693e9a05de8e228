"""skinny: a few rows of A, written out, against BLOCK_SIZE_N rows of the weights for each program, without a dot."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.expression import cdiv
from genkern.kernels.families.call import (
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


def _variant(problem: GemmProblem, config: Config) -> Variant:
    return masked_variant(problem, config, rows=config.BLOCK_SIZE_M)


def _call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), SPLITS)
    kernel = main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N), cdiv(M, BLOCK_SIZE_M), SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


SKINNY = Family(
    "skinny",
    _variant,
    _call,
    splits_k=True,
    runs_on_amd=True,
    uses_dot=False,
    has_semaphore=True,
    least_block_m=1,
    most_block_m=16,
)
