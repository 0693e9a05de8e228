"""gemv: one row of A against BLOCK_SIZE_N rows of the weights for each program, without a dot."""

from __future__ import annotations

from genkern.kernels.expression import cdiv
from genkern.kernels.families.call import BLOCK_SIZE_N, Call, Family, N, Product, Variant
from genkern.kernels.families.common import C_POINTER, POINTERS, leading, main_kernel, masked_variant, sizes


def _call(product: Product, variant: Variant) -> Call:
    arguments = (*POINTERS, C_POINTER, *product.extra, *sizes(product)[1:], *leading(product, "b"))
    return Call((main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N)),))


GEMV = Family("gemv", masked_variant, _call, runs_on_amd=True, uses_dot=False, least_block_m=1, most_block_k=8192)
