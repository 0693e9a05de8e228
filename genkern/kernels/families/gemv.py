"""gemv: one row of A against BLOCK_SIZE_N rows of the weights for each program, without a dot."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.expression import cdiv
from genkern.kernels.families.call import BLOCK_SIZE_N, Call, Family, N, Product, Variant
from genkern.kernels.families.common import C_POINTER, POINTERS, leading, main_kernel, masked_variant, sizes
from genkern.kernels.families.limits import MOST_ELEMENTS, grid_limit


def _call(product: Product, variant: Variant) -> Call:
    arguments = (*POINTERS, C_POINTER, *product.extra, *sizes(product)[1:], *leading(product, "b"))
    return Call((main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N)),))


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Its text has one row of A, and reads B in the direction in which it is stored."""
    if problem.M != 1:
        return "gemv multiplies one row of A"
    return "gemv reads weights whose rows run along K (rowMajorB: N)" if problem.row_major_b else ""


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    if config.BLOCK_SIZE_N * config.BLOCK_SIZE_K > MOST_ELEMENTS:
        return "a block of B has more elements than a tensor of Triton"
    return grid_limit(-(-problem.N // config.BLOCK_SIZE_N), config.num_warps, gpu)


GEMV = Family(
    "gemv",
    masked_variant,
    _call,
    takes=_takes,
    legal=_legal,
    runs_on_amd=True,
    uses_dot=False,
    least_block_m=1,
    most_block_k=8192,
)
