"""The families in Gluon for sm_90: one warp loads through TMA, the others multiply by wgmma.

warp_specialized and warp_specialized_swapped walk over the tiles of C; with SPLIT_K the tiles beyond the last full wave
are shared. In the families with a cluster its programs make one tile, each over a share of K.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import WIDTH, Argument, Constant, Counters, Descriptor, Descriptors, Integer, Workspace
from genkern.kernels.expression import Value, cdiv, least, most, name, where
from genkern.kernels.families.call import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    NUM_STAGES,
    NUM_WARPS,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    UNITS,
    Call,
    Family,
    K,
    Kernel,
    Options,
    Product,
    Variant,
)
from genkern.kernels.families.common import BINARY_NAME, GROUP, sizes
from genkern.kernels.families.gluon_tile import parts_of, powers_of, ring_k

# Registers are dealt out to whole warpgroups, so the one loading warp costs a group.
HELPER_WARPS = 4
# Registers per thread when one program has the whole SM: 65,536 over its threads, in steps of 8.
MAX_REGISTERS = least(256, 65536 // ((NUM_WARPS + HELPER_WARPS) * 32) // 8 * 8)
# Tiles beyond the last full wave, and programs that share them: all, or SPLIT_K a tile, each with a K-block at least.
REST, SHARERS = name("rest"), name("sharers")
SHARES = (
    TILES_OF_C,
    ("rest", TILES % UNITS),
    ("sharers", most(1, least(UNITS, REST * least(SPLIT_K, cdiv(K, BLOCK_SIZE_K))))),
)


def _variant(problem: GemmProblem, config: Config) -> Variant:
    facts = _BY_NAME[config.family]
    split = config.SPLIT_K > 1 and facts.split_apart
    width = config.BLOCK_SIZE_M if facts.swaps_operands else config.BLOCK_SIZE_N
    column_boxes, c_parts = len(powers_of(width)), len(parts_of(width, facts.cluster))
    name = f"matmul_{config.family}_b{column_boxes}" + (f"_c{c_parts}" if facts.cluster > 1 else "")
    return Variant(
        name + ("_split" if split else ""),
        "gemm/warp_specialized.py.j2",
        split=split,
        swapped=facts.swaps_operands,
        cluster=facts.cluster,
        column_boxes=column_boxes,
        c_parts=c_parts,
    )


def _ring_k(product: Product) -> int:
    return ring_k(DTYPES[product.problem.dtype_a].size_bytes)


def _boxes(product: Product, variant: Variant) -> tuple[Argument, ...]:
    """Descriptors of the operand whose rows the 64 of wgmma go along, of the other one's parts, and of C's."""
    width, height = (BLOCK_SIZE_M, BLOCK_SIZE_N) if variant.swapped else (BLOCK_SIZE_N, BLOCK_SIZE_M)

    def box(name: str, operand: str, box: tuple[Value, Value]) -> Descriptor:
        return product.descriptor(name, operand, box, swizzled=True, cluster=variant.cluster)

    depth = _ring_k(product)
    if variant.swapped:
        rows, columns = box("rows_desc", "b", (depth, height)), box("columns_desc", "a", (WIDTH, depth))
        c = box("c_desc", "c", (WIDTH, height))
    else:
        rows, columns = box("rows_desc", "a", (height, depth)), box("columns_desc", "b", (depth, WIDTH))
        c = box("c_desc", "c", (height, WIDTH))
    # A cluster's programs load all of the columns, and store a share each.
    parts = Descriptors(c, variant.c_parts, width, variant.cluster)
    return rows, Descriptors(columns, variant.column_boxes, width), parts


def _call(product: Product, variant: Variant) -> Call:
    arguments = [*_boxes(product, variant)]
    if variant.split:
        arguments += [Workspace("partial_ptr", product.accumulator), Counters("ready_ptr")]
    arguments += [*product.extra, *sizes(product), GROUP]
    if variant.split:
        arguments += [Integer("WHOLE_TILES", TILES - REST), Integer("SHARERS", SHARERS)]
    together = BLOCK_SIZE_K // _ring_k(product)
    arguments += [
        BINARY_NAME,
        Constant("BLOCK_SIZE_M", BLOCK_SIZE_M),
        Constant("BLOCK_SIZE_N", BLOCK_SIZE_N),
        Constant("STAGES", NUM_STAGES * together),
        Constant("TOGETHER", together),
        Constant("num_warps", NUM_WARPS),
    ]
    # One program per SM: it may use all of the SM's registers.
    options: Options = (("num_warps", NUM_WARPS), ("maxnreg", MAX_REGISTERS))
    if variant.cluster > 1:
        return _launched(variant, arguments, TILES, (*options, ("num_ctas", variant.cluster)))
    if not variant.split:
        return _launched(variant, arguments, least(UNITS, TILES), options)
    kernel = Kernel(variant, tuple(arguments), (where(TILES > REST, UNITS, SHARERS), 1, 1), options)
    return Call((kernel,), SHARES, SHARERS * BLOCK_SIZE_M * BLOCK_SIZE_N, SHARERS)


def _launched(variant: Variant, arguments: list[Argument], programs: Value, options: Options) -> Call:
    return Call((Kernel(variant, tuple(arguments), (programs, 1, 1), options),), (TILES_OF_C,))


WARP_SPECIALIZED = Family(
    "warp_specialized",
    _variant,
    _call,
    uses_tma=True,
    splits_k=True,
    split_apart=True,
    has_semaphore=True,
    interpreted=False,
    width_step=16,
    helper_warps=HELPER_WARPS,
)
WARP_SPECIALIZED_SWAPPED = Family(
    "warp_specialized_swapped",
    _variant,
    _call,
    uses_tma=True,
    splits_k=True,
    split_apart=True,
    has_semaphore=True,
    interpreted=False,
    swaps_operands=True,
    width_step=8,
    helper_warps=HELPER_WARPS,
    least_block_m=8,
)
CLUSTERS = tuple(
    Family(
        f"warp_specialized_swapped_cluster{cluster}",
        _variant,
        _call,
        uses_tma=True,
        interpreted=False,
        swaps_operands=True,
        width_step=8,
        helper_warps=HELPER_WARPS,
        cluster=cluster,
        least_block_m=8,
    )
    for cluster in (2, 4, 8)
)
_BY_NAME = {family.name: family for family in (WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED, *CLUSTERS)}
