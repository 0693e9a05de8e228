"""tiled: one program per tile of C and split of K, with operands loaded through pointers.

A second kernel adds up the splits, or with reduce = semaphore the last program of each tile. `swapped` is meant for M
up to 128: N takes the long side of the matrix instruction, and only the semaphore adds up the splits.
"""

from __future__ import annotations

from functools import partial

from genkern.gemm.columns import Refusals
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import AMD_OPTIONS, CACHE_MODIFIER, REDUCE, SWAPPED, XCD_REMAP
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.contract.argument import Integer, Workspace
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.cost import EDGES, SWAPPED_EDGES, Cost
from genkern.kernels.contract.expression import name, where
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sum_order import equal_shares
from genkern.kernels.contract.symbols import SPLIT_K, TILES, TILES_OF_C, UNITS, UNITS_PER_XCD, XCDS, M, N
from genkern.kernels.contract.traits import KernelTraits, TileLimits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.common import (
    C_POINTER,
    GROUP,
    POINTERS,
    SPLIT_TILES,
    SPLITS,
    leading,
    main_kernel,
    masked_variant,
    reduction,
    sizes,
    slot_elements,
    slot_rows,
    slot_sums,
    sums,
    when_split,
)
from genkern.kernels.families.limits import dot_limit, grid_limit, over_c_limit, splits_limit, tiles, too_many
from genkern.kernels.families.sum_orders import of_dot
from genkern.ops.op import groups_of

# A partition of an AMD device (DPX, QPX, CPX) has fewer CUs and fewer XCDs. If the device reports fewer CUs than one
# XCD has (no real GPU does), it counts as the whole device.
NUM_XCDS = Integer("NUM_XCDS", name("xcds"))
XCDS_OF_UNITS = ("xcds", where(UNITS // UNITS_PER_XCD, UNITS // UNITS_PER_XCD, XCDS))


def _variant(problem: GemmProblem, config: Config) -> Variant:
    return masked_variant("tiled", problem, config, split=config.SPLIT_K > 1)


def _call(product: Product, variant: Variant) -> Call:
    xcds = (NUM_XCDS,) if variant.xcd else ()
    definitions = (TILES_OF_C, XCDS_OF_UNITS) if variant.xcd else (TILES_OF_C,)
    if product.groups and product.groups.summed:
        arguments = (*POINTERS, C_POINTER, slot_rows(product), *product.extra, *sizes(product))
        main = main_kernel(variant, (*arguments, *leading(product, "ab"), GROUP), TILES)
        return Call((main, slot_sums(product)), definitions, workspace=slot_elements(product))
    if not variant.split:
        arguments = (*POINTERS, C_POINTER, *product.extra, *sizes(product), *leading(product, "abc"), GROUP, *xcds)
        return Call((main_kernel(variant, arguments, TILES),), definitions)
    partial = Workspace("partial_ptr", product.accumulator)
    arguments = (*POINTERS, partial, *product.in_step, *sizes(product), *leading(product, "ab"), GROUP, *xcds, SPLITS)
    kernels = main_kernel(variant, arguments, TILES, SPLIT_K), reduction(product, SPLIT_K)
    return Call(kernels, definitions, workspace=SPLIT_K * M * N)


def _legal(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    if groups_of(problem) is not None:
        yield configs.xcd_remap == 1, "tiles of groups have an order of their own, without xcd_remap"
    yield from dot_limit(problem, configs, gpu)
    yield from grid_limit(tiles(problem, configs), configs.num_warps, gpu)


def _shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """K is divided into runs of whole blocks. The last run may end up to SPLIT_K blocks beyond K."""
    is_split = configs.SPLIT_K > 1
    blocks = -(-problem.K // configs.BLOCK_SIZE_K)
    beyond = (blocks + configs.SPLIT_K) * configs.BLOCK_SIZE_K >= INT32
    yield is_split & beyond, "splits end beyond what 32 bits count"
    # With xcd_remap, programs are numbered over all splits.
    yield is_split & too_many(tiles(problem, configs), configs.SPLIT_K), "more programs than 32 bits count"
    if reason := over_c_limit(problem, gpu):
        yield is_split, reason


def _semaphore_call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), GROUP, SPLITS)
    kernel = main_kernel(variant, arguments, TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


# On CDNA, Triton (3.6 and 3.7) pads tiles of 4 and 8 rows to an instruction of 16 rows if matrix_instr_nonkdim is set.
# Otherwise it uses v_mfma_f32_4x4x4_16b for 16-bit tiles of 64 columns, and vector instructions for the rest, as on
# RDNA.
_SIDES = TileLimits(few_m=4)


def _semaphore(swapped: bool) -> KernelTraits:
    def legal(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
        yield from dot_limit(problem, configs, gpu, swapped=swapped)
        yield from grid_limit(tiles(problem, configs), configs.num_warps, gpu)

    stem = "tiled_swapped" if swapped else "tiled_semaphore"
    return KernelTraits(
        stem,
        partial(masked_variant, stem),
        _semaphore_call,
        legal=legal,
        shares=splits_limit,
        sums=partial(of_dot, swapped),
        cost=Cost(SWAPPED_EDGES if swapped else EDGES, reduces="semaphore"),
        sides=TileLimits(least_m=8) if swapped else _SIDES,
        splits_k=True,
        swapped=swapped,
        batches=True,
    )


def _form(choice: Choice) -> KernelTraits | str:
    swapped, semaphore = bool(choice["swapped"]), choice["reduce"] == "semaphore"
    if not semaphore and not swapped:
        return _KERNEL
    return _SEMAPHORE[swapped] if semaphore else "swapped tiles are added up by a semaphore only (reduce)"


_KERNEL = KernelTraits(
    "tiled",
    _variant,
    _call,
    legal=_legal,
    shares=_shares,
    sides=_SIDES,
    sums=partial(of_dot, False, shares=equal_shares),
    splits_k=True,
    split_apart=True,
    places_loads=True,
    batches=True,
    groups=True,
    gathers=True,
)
_SEMAPHORE = {swapped: _semaphore(swapped) for swapped in (False, True)}
TILED = Family(
    "tiled",
    _form,
    (REDUCE.of("usual", "semaphore"), SWAPPED, XCD_REMAP, CACHE_MODIFIER, *AMD_OPTIONS),
)
