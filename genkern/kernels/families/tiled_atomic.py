"""tiled_atomic: one program for each tile of C and split of K; all add to one matrix, in no order."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import Argument, Integer, Pointer, Workspace, alignment_of
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
from genkern.kernels.families.limits import dot_limit, grid_limit, over_c_limit, splits_limit, tiles


def _call(product: Product, variant: Variant) -> Call:
    # What is added to is C itself where C is what the sums are.
    pointer: Argument = Pointer("sum_ptr", "c")
    ld_sum: Argument = product.leading("ld_sum", "c")
    if not product.sums_are_c:
        pointer = Workspace("sum_ptr", product.accumulator)
        ld_sum = Integer("ld_sum", N, alignment_of(product.problem.N))
    arguments = (*POINTERS, pointer, *product.in_step, *sizes(product), *leading(product, "ab"), ld_sum, GROUP, SPLITS)
    kernels = zero_fill(product, (pointer, ld_sum)), main_kernel(variant, arguments, TILES, SPLIT_K)
    if product.sums_are_c:
        return Call(kernels, (TILES_OF_C,))
    # One split is left to reduce: the sum.
    return Call((*kernels, reduction(product, 1)), (TILES_OF_C,), workspace=M * N)


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    return (
        dot_limit(problem, config, gpu)
        or grid_limit(tiles(problem, config), config.num_warps, gpu)
        or over_c_limit(problem, gpu)
    )


TILED_ATOMIC = Family(
    "tiled_atomic",
    masked_variant,
    _call,
    legal=_legal,
    shares=splits_limit,
    splits_k=True,
    runs_on_amd=True,
    deterministic=False,
    kernels_before=1,
    batches=True,
)
