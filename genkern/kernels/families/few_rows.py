"""Families for few rows that multiply without a dot: gemv for one row of A, skinny for up to 16, written out."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
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
from genkern.kernels.families.limits import GRID_YZ, MOST_ELEMENTS, grid_limit, splits_limit


def _gemv_call(product: Product, variant: Variant) -> Call:
    arguments = (*POINTERS, C_POINTER, *product.extra, *sizes(product)[1:], *leading(product, "b"))
    return Call((main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N)),))


def _gemv_takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Its text has one row of A, and reads B in the direction in which it is stored."""
    if problem.M != 1:
        return "gemv multiplies one row of A"
    return "gemv reads weights whose rows run along K (rowMajorB: N)" if problem.row_major_b else ""


def _gemv_legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    if config.BLOCK_SIZE_N * config.BLOCK_SIZE_K > MOST_ELEMENTS:
        return "a block of B has more elements than a tensor of Triton"
    return grid_limit(-(-problem.N // config.BLOCK_SIZE_N), config.num_warps, gpu)


GEMV = Family(
    "gemv",
    masked_variant,
    _gemv_call,
    takes=_gemv_takes,
    legal=_gemv_legal,
    runs_on_amd=True,
    uses_dot=False,
    steps=False,
    converts=True,
    least_block_m=1,
    most_block_k=8192,
    batches=True,
)


def _skinny_variant(problem: GemmProblem, config: Config) -> Variant:
    return masked_variant(problem, config, rows=config.BLOCK_SIZE_M)


def _skinny_call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), SPLITS)
    kernel = main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N), cdiv(M, BLOCK_SIZE_M), SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _skinny_legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    # They become one tensor.
    if config.BLOCK_SIZE_M * config.BLOCK_SIZE_N * config.BLOCK_SIZE_K > MOST_ELEMENTS:
        return "the accumulators of all rows have more elements than a tensor of Triton"
    return grid_limit(-(-problem.N // config.BLOCK_SIZE_N), config.num_warps, gpu)


def _shares(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    if -(-problem.M // config.BLOCK_SIZE_M) > GRID_YZ:
        return f"more rows of tiles than the {GRID_YZ:,} programs of a grid's second dimension"
    return splits_limit(problem, config, gpu)


SKINNY = Family(
    "skinny",
    _skinny_variant,
    _skinny_call,
    legal=_skinny_legal,
    shares=_shares,
    splits_k=True,
    runs_on_amd=True,
    uses_dot=False,
    steps=False,
    converts=True,
    has_semaphore=True,
    least_block_m=1,
    most_block_m=16,
)
