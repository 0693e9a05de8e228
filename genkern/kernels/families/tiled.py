"""tiled: one program for each tile of C, and of K's splits, which a second kernel adds up."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import Integer, Workspace
from genkern.kernels.expression import name, where
from genkern.kernels.families.call import (
    SPLIT_K,
    TILES,
    TILES_OF_C,
    UNITS,
    UNITS_PER_XCD,
    XCDS,
    Call,
    Family,
    M,
    N,
    Product,
    Variant,
)
from genkern.kernels.families.common import (
    C_POINTER,
    GROUP,
    POINTERS,
    SPLITS,
    leading,
    main_kernel,
    masked_variant,
    reduction,
    sizes,
    slot_elements,
    slot_rows,
    slot_sums,
)
from genkern.kernels.families.limits import INT32, dot_limit, grid_limit, over_c_limit, tiles
from genkern.ops.op import groups_of

# A partition of a device (DPX, QPX, CPX) shows fewer CUs, and has fewer XCDs. Fewer than one XCD has (no GPU) count as
# the whole device.
NUM_XCDS = Integer("NUM_XCDS", name("xcds"))
XCDS_OF_UNITS = ("xcds", where(UNITS // UNITS_PER_XCD, UNITS // UNITS_PER_XCD, XCDS))


def _variant(problem: GemmProblem, config: Config) -> Variant:
    return masked_variant(problem, config, split=config.SPLIT_K > 1)


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


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    if config.xcd_remap and groups_of(problem) is not None:
        return "tiles of groups are taken in their own order, without xcd_remap"
    return dot_limit(problem, config, gpu) or grid_limit(tiles(problem, config), config.num_warps, gpu)


def _shares(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """K goes to the splits in runs of whole blocks, the last of which may end up to SPLIT_K blocks beyond it."""
    if config.SPLIT_K == 1:
        return ""
    blocks = -(-problem.K // config.BLOCK_SIZE_K)
    if (blocks + config.SPLIT_K) * config.BLOCK_SIZE_K >= INT32:
        return "splits end beyond what 32 bits count"
    # In the order for XCDs programs are numbered over all splits.
    if tiles(problem, config) * config.SPLIT_K >= INT32:
        return "more programs than 32 bits count"
    return over_c_limit(problem, gpu)


TILED = Family(
    "tiled",
    _variant,
    _call,
    legal=_legal,
    shares=_shares,
    splits_k=True,
    split_apart=True,
    runs_on_amd=True,
    places_loads=True,
    batches=True,
    groups=True,
    gathers=True,
)
