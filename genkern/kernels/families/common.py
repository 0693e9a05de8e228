"""Parts that several families share: runs of arguments, masks, and the kernels launched after the main kernel."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import (
    BINARY,
    Argument,
    Constant,
    Counters,
    Integer,
    Pointer,
    Workspace,
    alignment_of,
)
from genkern.kernels.contract.call import Call, Kernel, Options
from genkern.kernels.contract.expression import Value, cdiv, where
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.symbols import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    GROUP_SIZE_M,
    NUM_STAGES,
    NUM_WARPS,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    K,
    M,
    N,
)
from genkern.kernels.contract.variant import Variant
from genkern.ops.op import groups_of

Arguments = tuple[Argument, ...]
# Elements of C per program of the split-K reduction: two per thread of four warps on AMD and four on NVIDIA, which is
# enough for 16-byte accesses. It is small enough to fill the GPU when M is 1.
REDUCE_BLOCK_SIZE = 512
_SUM_BLOCK_SIZE = 1024
REDUCE = Variant("reduce_splits", "gemm/reduce_splits.py.j2")
SUM_SLOTS = Variant("sum_slots", "gemm/sum_slots.py.j2")
AROUND_OPTIONS: Options = (("num_warps", 4), ("num_stages", 1))
# Options from the config. The AMD options follow them.
CONFIG_OPTIONS: Options = (("num_warps", NUM_WARPS), ("num_stages", NUM_STAGES))

BINARY_NAME = Constant("BINARY", BINARY)
CONSTANTS: Arguments = (
    BINARY_NAME,
    Constant("BLOCK_SIZE_M", BLOCK_SIZE_M),
    Constant("BLOCK_SIZE_N", BLOCK_SIZE_N),
    Constant("BLOCK_SIZE_K", BLOCK_SIZE_K),
)
POINTERS: Arguments = (Pointer("a_ptr", "a"), Pointer("b_ptr", "b"))
C_POINTER = Pointer("c_ptr", "c")
GROUP = Integer("GROUP_SIZE_M", GROUP_SIZE_M)
SPLITS = Integer("SPLIT_K", SPLIT_K)


def sizes(product: Product) -> Arguments:
    """Return the arguments M, N and K.

    N and K get guaranteed divisors. M gets one only if A is column-major, since no other operand is contiguous along M.
    """
    problem = product.problem
    return (
        Integer("M", M, 1 if problem.row_major_a else alignment_of(problem.M)),
        Integer("N", N, alignment_of(problem.N)),
        Integer("K", K, alignment_of(problem.K)),
    )


def leading(product: Product, operands: str) -> Arguments:
    """Return the leading dimensions of the operands whose one-letter names make up `operands`."""
    return tuple(product.leading(f"ld{operand}", operand) for operand in operands)


def sums(product: Product) -> Arguments:
    """Return the arguments for split-K: the workspace for partial sums, and the counters of finished programs."""
    return Workspace("partial_ptr", product.accumulator), Counters("arrived_ptr")


def masked_variant(
    stem: str,
    problem: GemmProblem,
    config: Config,
    *,
    split: bool = False,
    rows: int = 0,
    clips_k: bool = False,
    template: str = "",
) -> Variant:
    """Return the kernel text of a config with one program per tile, with masks for the dimensions that tiles overhang.

    `stem` is the prefix of the kernel's name. It also names the template unless `template` does. With `clips_k`, TMA
    loads zeros beyond K, so that K needs no mask.
    """
    overhangs = {
        # A group may end inside any tile.
        "m": problem.M % config.BLOCK_SIZE_M != 0 or groups_of(problem) is not None,
        "n": problem.N % config.BLOCK_SIZE_N != 0,
        "k": problem.K % config.BLOCK_SIZE_K != 0 and not clips_k,
    }
    masked = "".join(letter for letter, needed in overhangs.items() if needed)
    placed = "_xcd" * config.xcd_remap + config.cache_modifier.replace("none", "").replace(".", "_")
    name = (
        f"matmul_{stem}"
        + (f"_rows{rows}" if rows else "")
        + ("_split" if split else "")
        + placed
        + (f"_mask_{masked}" if masked else "")
    )
    masks = overhangs["m"], overhangs["n"], overhangs["k"]
    template = f"gemm/{template or stem}.py.j2"
    return Variant(name, template, *masks, split, bool(config.xcd_remap), config.cache_modifier, rows)


def main_kernel(variant: Variant, arguments: Arguments, *grid: Value) -> Kernel:
    """Return a Triton kernel that is compiled with the config's block sizes and options."""
    x, y, z = (*grid, 1, 1)[:3]
    return Kernel(variant, (*arguments, *CONSTANTS), (x, y, z), CONFIG_OPTIONS, takes_amd_options=True)


def reduction(product: Product, splits: Value) -> Kernel:
    """Return the kernel that adds up the partial sums [splits, M, N] in the workspace and writes C."""
    partial = Workspace("partial_ptr", product.accumulator)
    numbers = (*sizes(product)[:2], *leading(product, "c"), Integer("SPLIT_K", splits))
    options = (*AROUND_OPTIONS, ("launch_pdl", 1)) if product.starts_early else AROUND_OPTIONS
    return _over_c(REDUCE, (partial, C_POINTER, *product.at_end, *numbers), options)


def slot_rows(product: Product) -> Workspace:
    """Return the workspace argument in which a kernel leaves one row for each slot (a row of A and one of its experts).

    The rows have C's type, although the argument has the accumulator's.
    """
    return Workspace("partial_ptr", product.accumulator)


def slot_elements(product: Product) -> Value:
    """Return the size of the slot rows in elements of the accumulator's type."""
    assert product.groups is not None
    size_bytes = DTYPES[product.problem.dtype_c].size_bytes
    return cdiv(M * product.groups.top_k * N * size_bytes, DTYPES[product.accumulator].size_bytes)


def slot_sums(product: Product) -> Kernel:
    """Return the kernel that adds up the slot rows [M * top_k, N] in the workspace (of C's type) and writes C."""
    numbers = (Integer("N", N, alignment_of(product.problem.N)), *leading(product, "c"))
    constants = (Constant("BINARY", f"B{_SUM_BLOCK_SIZE}"), Constant("BLOCK_SIZE", _SUM_BLOCK_SIZE))
    options = (*AROUND_OPTIONS, ("launch_pdl", 1)) if product.starts_early else AROUND_OPTIONS
    arguments = (slot_rows(product), C_POINTER, *numbers, *constants)
    return Kernel(SUM_SLOTS, arguments, (M * cdiv(N, _SUM_BLOCK_SIZE), 1, 1), options)


def of_groups(product: Product, variant: Variant, a: Argument, b: Argument, last: Arguments, *grid: Value) -> Call:
    """Return the call for rows in groups whose weights are loaded through the TMA descriptor `b`.

    Gathered rows of A are loaded through pointers, other rows through `a`. If a row of C is the sum of several slots, a
    second kernel adds the slots up. `grid` may use TILES.
    """
    groups = product.groups
    assert groups is not None
    rows, of_a = (POINTERS[0], "a") if groups.gathered else (a, "")
    slots = (slot_rows(product),) if groups.summed else ()
    lead = leading(product, of_a if groups.summed else f"{of_a}c")
    arguments = (rows, b, C_POINTER, *slots, *product.extra, *sizes(product), *lead, *last)
    main = main_kernel(variant, arguments, *grid)
    if not groups.summed:
        return Call((main,), (TILES_OF_C,))
    return Call((main, slot_sums(product)), (TILES_OF_C,), workspace=slot_elements(product))


def _over_c(variant: Variant, arguments: Arguments, options: Options) -> Kernel:
    constants = (Constant("BINARY", f"B{REDUCE_BLOCK_SIZE}"), Constant("BLOCK_SIZE", REDUCE_BLOCK_SIZE))
    return Kernel(variant, (*arguments, *constants), (cdiv(M * N, REDUCE_BLOCK_SIZE), 1, 1), options)


# Size of the partial sums of all splits and tiles, in elements. Each tile is stored whole.
SPLIT_TILES = TILES * SPLIT_K * BLOCK_SIZE_M * BLOCK_SIZE_N


def when_split(elements: Value) -> Value:
    """Return `elements` if SPLIT_K is above 1, else 0."""
    return where(SPLIT_K > 1, elements, 0)
