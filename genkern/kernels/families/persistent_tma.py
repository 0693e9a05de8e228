"""persistent_tma: one program for each SM walks over the tiles of C; operands and C through TMA, which clips them.

In persistent_tma_specialized, which has the same text but for one word, some warps load and the others multiply.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.expression import least
from genkern.kernels.families.call import (
    BLOCK_SIZE_K,
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
from genkern.kernels.families.common import GROUP, main_kernel, sizes


def _variant(problem: GemmProblem, config: Config) -> Variant:
    specialized = config.family == PERSISTENT_TMA_SPECIALIZED.name
    return Variant(f"matmul_{config.family}", "gemm/persistent_tma.py.j2", specialized=specialized)


def _call(product: Product, variant: Variant) -> Call:
    a = product.descriptor("a_desc", "a", (BLOCK_SIZE_M, BLOCK_SIZE_K))
    b = product.descriptor("b_desc", "b", (BLOCK_SIZE_K, BLOCK_SIZE_N))
    c = product.descriptor("c_desc", "c", (BLOCK_SIZE_M, BLOCK_SIZE_N))
    arguments = (a, b, c, *product.extra, *sizes(product), GROUP)
    return Call((main_kernel(variant, arguments, least(UNITS, TILES)),), (TILES_OF_C,))


PERSISTENT_TMA = Family("persistent_tma", _variant, _call, uses_tma=True)
# Triton adds whole warpgroups: one warp of four loads, one multiplies.
PERSISTENT_TMA_SPECIALIZED = Family("persistent_tma_specialized", _variant, _call, uses_tma=True, helper_warps=4)
