"""persistent_tma: one program per SM walks over the tiles of C. Operands and C go through TMA, which clips the edges.

Exceptions are rows in groups: C, and rows of A that are gathered, go through pointers. With `specialized`, some warps
load and the others multiply; the two texts differ in one word.
"""

from __future__ import annotations

from functools import partial

from genkern.gemm.columns import Refusals, either
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import SPECIALIZED
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.expression import least
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.symbols import BLOCK_SIZE_K, BLOCK_SIZE_M, BLOCK_SIZE_N, TILES, TILES_OF_C, UNITS
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.common import GROUP, main_kernel, of_groups, sizes
from genkern.kernels.families.limits import dot_limit, tma_box_limit, tma_operands_limit, tma_output_limit
from genkern.kernels.families.sum_orders import of_dot
from genkern.ops.op import groups_of


def _variant(stem: str, problem: GemmProblem, config: Config) -> Variant:
    if (groups := groups_of(problem)) is not None:
        # Gathered rows are loaded through pointers, which need a mask along K.
        overhangs = groups.gathered and problem.K % config.BLOCK_SIZE_K != 0
        name = f"matmul_{stem}_groups" + "_mask_k" * overhangs
        return Variant(name, "gemm/persistent_tma_groups.py.j2", mask_k=overhangs)
    return Variant(f"matmul_{stem}", "gemm/persistent_tma.py.j2", specialized=bool(config.specialized))


def _call(product: Product, variant: Variant) -> Call:
    a = product.descriptor("a_desc", "a", (BLOCK_SIZE_M, BLOCK_SIZE_K))
    b = product.descriptor("b_desc", "b", (BLOCK_SIZE_K, BLOCK_SIZE_N))
    if product.groups is not None:
        return of_groups(product, variant, a, b, (GROUP,), least(UNITS, TILES))
    c = product.descriptor("c_desc", "c", (BLOCK_SIZE_M, BLOCK_SIZE_N))
    arguments = (a, b, c, *product.extra, *sizes(product), GROUP)
    return Call((main_kernel(variant, arguments, least(UNITS, TILES)),), (TILES_OF_C,))


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    if groups_of(problem) is not None and (problem.row_major_b or not problem.row_major_a):
        return "for groups, TMA reads zeros beyond K only if rows are contiguous along K (rowMajorA: T, rowMajorB: N)"
    return tma_operands_limit(problem) or tma_output_limit(problem)


def _legal(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    yield from tma_box_limit(problem, configs)
    # If the loop is pipelined, Triton starts a tile while the one before it is stored.
    yield from dot_limit(problem, configs, gpu, held_tiles=either(configs.num_stages > 1, 2, 1))


def _legal_specialized(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Triton splits the warps into groups only if it does not multiply by wgmma; with wgmma it ignores the option."""
    if gpu is not None and not gpu.has.wgmma:
        yield configs.num_warps < 4, "Triton cannot specialise fewer than four warps"
    yield from tma_box_limit(problem, configs)
    yield from dot_limit(problem, configs, gpu)


_PLAIN = KernelTraits(
    "persistent_tma",
    partial(_variant, "persistent_tma"),
    _call,
    takes=_takes,
    legal=_legal,
    sums=partial(of_dot, False),
    uses_tma=True,
    needs=("tma",),
    stores_tma=True,
    groups=True,
    gathers=True,
)
# Triton adds a whole warpgroup of four warps: one of them loads, one issues the products.
_SPECIALIZED = KernelTraits(
    "persistent_tma_specialized",
    partial(_variant, "persistent_tma_specialized"),
    _call,
    takes=_takes,
    legal=_legal_specialized,
    sums=partial(of_dot, False),
    uses_tma=True,
    needs=("tma",),
    stores_tma=True,
    helper_warps=4,
)


def _form(choice: Choice) -> KernelTraits:
    return _SPECIALIZED if choice["specialized"] else _PLAIN


PERSISTENT_TMA = Family("persistent_tma", _form, (SPECIALIZED,))
