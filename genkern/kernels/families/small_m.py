"""Families for few rows of A: gemv (one row), skinny (tiles of up to 16 rows), skinny_dot (tiles of up to 64 rows).

gemv and skinny multiply without matrix instructions, with every row written out. skinny_dot is written in Gluon and
multiplies by mma.sync. It converts weights of fewer bits to A's type in registers. Its warps divide K among them;
several warps may take the same part of K for different rows of the weight.
"""

from __future__ import annotations

from functools import partial

from genkern.gemm.columns import Column, Refusals, negated, within
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import AMD_OPTIONS
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Constant
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.cost import SWAPPED_EDGES, Cost
from genkern.kernels.contract.expression import cdiv, where
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.symbols import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    NUM_STAGES,
    NUM_WARPS,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    M,
    N,
)
from genkern.kernels.contract.traits import KernelTraits, TileLimits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.common import (
    BINARY_NAME,
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
from genkern.kernels.families.sum_orders import of_lanes
from genkern.ops.op import element_bytes, get_op

# Elements along K that one warp multiplies in a step.
WARP_K = 128
# Bytes that a thread loads at a time.
_LOAD_BYTES = 16
# Rows and columns of the mma.sync instruction. Its rows lie along N.
_ROWS, _COLUMNS = 16, 8
# Largest number of rows of A that are held in shared memory even if no two warps multiply the same elements of K.
_MOST_HELD_ROWS = 8
# Largest number of bytes of A, or of scales, in shared memory; half of it for programs of up to 8 warps, so that an SM
# has room for two of them. _MOST_HELD_EACH: most elements that a thread carries at a time from global to shared memory.
_MOST_HELD_BYTES, _MOST_HELD_EACH = 128 * 1024, 256
# Limit of registers per thread. With 64 registers each of an SM's four schedulers holds eight warps, with 128 four.
# Without a limit ptxas hoists loads and conversions and uses too many registers (Triton 3.6.0).
_SUMS_AND_WORDS = BLOCK_SIZE_M * BLOCK_SIZE_N * BLOCK_SIZE_K * NUM_STAGES // (NUM_WARPS * WARP_K)
_SHARE_A = NUM_WARPS * WARP_K > BLOCK_SIZE_K
_MAX_REGISTERS = where(
    _SUMS_AND_WORDS > 128, where(where(_SHARE_A, 512, 256) < _SUMS_AND_WORDS, where(NUM_WARPS > 8, 128, 255), 128), 64
)
_MOST_ROWS, _MOST_COLUMNS, _MOST_WARPS, _MOST_STAGES = 128, 64, 16, 4


def _gemv_call(product: Product, variant: Variant) -> Call:
    arguments = (*POINTERS, C_POINTER, *product.extra, *sizes(product)[1:], *leading(product, "b"))
    return Call((main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N)),))


def _gemv_takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Require one row of A, and weights that are contiguous along K."""
    if problem.M != 1:
        return "gemv multiplies one row of A"
    return "gemv reads weights that are contiguous along K (rowMajorB: N)" if problem.row_major_b else ""


def _gemv_legal(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    elements = configs.BLOCK_SIZE_N * configs.BLOCK_SIZE_K
    yield elements > MOST_ELEMENTS, "a block of B has more elements than a tensor of Triton"
    yield from grid_limit(-(-problem.N // configs.BLOCK_SIZE_N), configs.num_warps, gpu)


_GEMV = KernelTraits(
    "gemv",
    partial(masked_variant, "gemv"),
    _gemv_call,
    takes=_gemv_takes,
    legal=_gemv_legal,
    sums=of_lanes,
    sides=TileLimits(least_m=1, most_k=8192),
    reads="converted",
    uses_dot=False,
    batches=True,
)
GEMV = Family("gemv", _GEMV, AMD_OPTIONS)


def _skinny_variant(problem: GemmProblem, config: Config) -> Variant:
    return masked_variant("skinny", problem, config, rows=config.BLOCK_SIZE_M)


def _skinny_call(product: Product, variant: Variant) -> Call:
    pointers = (*POINTERS, C_POINTER, *sums(product), *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), SPLITS)
    kernel = main_kernel(variant, arguments, cdiv(N, BLOCK_SIZE_N), cdiv(M, BLOCK_SIZE_M), SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _skinny_legal(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    # The accumulators of all rows form one tensor.
    elements = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N * configs.BLOCK_SIZE_K
    yield elements > MOST_ELEMENTS, "the accumulators of all rows have more elements than a tensor of Triton"
    yield from grid_limit(-(-problem.N // configs.BLOCK_SIZE_N), configs.num_warps, gpu)


def _shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    yield (
        -(-problem.M // configs.BLOCK_SIZE_M) > GRID_YZ,
        f"more rows of tiles than the {GRID_YZ:,} programs of a grid's second dimension",
    )
    yield from splits_limit(problem, configs, gpu)


_SKINNY = KernelTraits(
    "skinny",
    _skinny_variant,
    _skinny_call,
    legal=_skinny_legal,
    shares=_shares,
    sums=of_lanes,
    cost=Cost((1, 1), vector=True, reduces="semaphore"),
    sides=TileLimits(least_m=1, most_m=16),
    reads="converted",
    splits_k=True,
    uses_dot=False,
)
SKINNY = Family("skinny", _SKINNY, AMD_OPTIONS)


def rows_of_warp(config: Config | ConfigTable) -> Column:
    """Return the rows of weights that one warp of skinny_dot multiplies.

    Warps that multiply the same elements of K have different rows.
    """
    return config.BLOCK_SIZE_N * config.BLOCK_SIZE_K // (WARP_K * config.num_warps)


def _most_held(problem: GemmProblem, config: Config, rows: int) -> int:
    """Return the number of steps whose `rows` rows of A fit in shared memory, and whose scales fit in as much again."""
    step, group = config.BLOCK_SIZE_K, get_op(problem.op).shared_scale(problem)[2]
    scales = config.BLOCK_SIZE_N * max(step // group, step // WARP_K) if group > 1 else 0
    # In elements of 16 bits. Scales may take as many bytes as A.
    room = min(_MOST_HELD_BYTES // (2 if config.num_warps > 8 else 4), _MOST_HELD_EACH * 32 * config.num_warps)
    return room // max(rows * step, scales)


def _dot_variant(problem: GemmProblem, config: Config) -> Variant:
    """Return a text with A in shared memory if one iteration of the loop fits there, else with A in registers.

    The numbers of rows and steps held are powers of two. Binaries are the same for every SPLIT_K above 1: the choice
    assumes that a program has half of the steps.
    """
    split = config.SPLIT_K > 1
    rows = min(config.BLOCK_SIZE_M, 1 << (problem.M - 1).bit_length())
    steps = -(-problem.K // config.BLOCK_SIZE_K)
    steps = -(-steps // 2) if split else steps
    most, turn = _most_held(problem, config, rows), config.num_stages + 1
    held = max(turn, min(1 << (steps - 1).bit_length(), 1 << most.bit_length() >> 1))
    side_by_side = WARP_K * config.num_warps // config.BLOCK_SIZE_K
    # With more rows each warp keeps A in its own registers, unless several warps multiply the same elements of K.
    if (rows > _MOST_HELD_ROWS and side_by_side == 1) or held > most or held % turn or held & (held - 1):
        return Variant("matmul_skinny_dot" + ("_split" if split else ""), "gemm/skinny_dot.py.j2", split=split)
    in_parts = split or held < steps
    name = f"matmul_skinny_dot{'_split' if split else ''}_a{rows}x{held}{'_parts' if in_parts else ''}"
    return Variant(name, "gemm/skinny_dot.py.j2", split=split, rows=rows, held=held, in_parts=in_parts)


def _dot_call(product: Product, variant: Variant) -> Call:
    shared, splits = (sums(product), (SPLITS,)) if variant.split else ((), ())
    pointers = (*POINTERS, C_POINTER, *shared, *product.extra)
    arguments = (*pointers, *sizes(product), *leading(product, "abc"), *splits)
    constants = (
        BINARY_NAME,
        Constant("BLOCK_SIZE_M", BLOCK_SIZE_M),
        Constant("BLOCK_SIZE_N", BLOCK_SIZE_N),
        Constant("BLOCK_SIZE_K", BLOCK_SIZE_K),
        Constant("STAGES", NUM_STAGES),
        Constant("num_warps", NUM_WARPS),
    )
    grid = cdiv(N, BLOCK_SIZE_N), cdiv(M, BLOCK_SIZE_M), SPLIT_K
    kernel = Kernel(variant, (*arguments, *constants), grid, (("num_warps", NUM_WARPS), ("maxnreg", _MAX_REGISTERS)))
    return (
        Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES)) if variant.split else Call((kernel,))
    )


def _dot_takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Require weights of fewer bits than A, contiguous along K, in rows that allow loads of 16 bytes."""
    if not get_op(problem.op).in_registers:
        return "this family multiplies weights of fewer bits than A's"
    if not problem.row_major_a or problem.row_major_b:
        return "this family loads operands that are contiguous along K (rowMajorA: T, rowMajorB: N)"
    if DTYPES[problem.dtype_b].encoding == "fnuz":
        return f"this family knows the bits of e4m3, not of {problem.dtype_b}"
    _, bytes_b = element_bytes(problem)
    if problem.K * bytes_b % _LOAD_BYTES:
        return "rows of B do not start at multiples of 16 bytes, which one load of a thread needs"
    return ""


def _dot_legal(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    yield (
        negated(within(_ROWS, configs.BLOCK_SIZE_N, _MOST_ROWS)),
        f"BLOCK_SIZE_N is not from {_ROWS} to {_MOST_ROWS}; one instruction multiplies {_ROWS} rows",
    )
    side_by_side = WARP_K * configs.num_warps // configs.BLOCK_SIZE_K
    yield (
        (configs.num_warps > _MOST_WARPS) | negated(within(1, side_by_side, configs.BLOCK_SIZE_N // _ROWS)),
        f"BLOCK_SIZE_K must give each of at most {_MOST_WARPS} warps {WARP_K} elements of its own, or the same "
        f"{WARP_K} to several warps that have at least {_ROWS} of BLOCK_SIZE_N each",
    )
    yield (
        negated(within(1, configs.num_stages, _MOST_STAGES)),
        f"num_stages is not from 1 to {_MOST_STAGES}: a thread holds the weights of num_stages steps in registers",
    )
    yield from grid_limit(-(-problem.N // configs.BLOCK_SIZE_N), configs.num_warps, gpu)


_SKINNY_DOT = KernelTraits(
    "skinny_dot",
    _dot_variant,
    _dot_call,
    takes=_dot_takes,
    legal=_dot_legal,
    shares=_shares,
    sums=of_lanes,
    cost=Cost(SWAPPED_EDGES, reduces="semaphore"),
    sides=TileLimits(least_m=_COLUMNS, most_m=_MOST_COLUMNS, most_k=WARP_K * _MOST_WARPS),
    reads="registers",
    aligned_rows=True,
    # The kernel does not use wgmma, but it was written for GPUs that have it and was measured on them only.
    needs=("wgmma",),
    splits_k=True,
    split_apart=True,
    interpreted=False,
    swapped=True,
)
SKINNY_DOT = Family("skinny_dot", _SKINNY_DOT)
