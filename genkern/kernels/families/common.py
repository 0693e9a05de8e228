"""What several families share: runs of arguments, masks, and the kernels around one that leaves C unfinished."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import (
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
from genkern.kernels.expression import Value, cdiv, where
from genkern.ops.op import groups_of

Arguments = tuple[Argument, ...]
# One program of the split-K reduction, or of the filling with zeros, takes this many elements of C, two per thread of
# four warps on AMD and four on NVIDIA: enough for 16-byte accesses, small enough to fill the GPU when M is 1.
REDUCE_BLOCK_SIZE = 512
_SUM_BLOCK_SIZE = 1024
REDUCE = Variant("reduce_splits", "gemm/reduce_splits.py.j2")
SUM_SLOTS = Variant("sum_slots", "gemm/sum_slots.py.j2")
AROUND_OPTIONS: Options = (("num_warps", 4), ("num_stages", 1))
# The config's own; AMD's come after them.
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
    """M, N and K. Codegen uses what divides those along which memory runs: M where A's columns are contiguous."""
    problem = product.problem
    return (
        Integer("M", M, 1 if problem.row_major_a else alignment_of(problem.M)),
        Integer("N", N, alignment_of(problem.N)),
        Integer("K", K, alignment_of(problem.K)),
    )


def leading(product: Product, operands: str) -> Arguments:
    """Leading dimensions: of operands with names of one letter."""
    return tuple(product.leading(f"ld{operand}", operand) for operand in operands)


def sums(product: Product) -> Arguments:
    """Where programs leave partial sums for one another, and count who has come."""
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
    """The kernel of a config with one program for each tile: it masks what overhangs.

    `stem` is what it is called after, and its template where there is no other `template`. `clips_k`: what lies beyond
    K is loaded as zeros without masks, by TMA.
    """
    overhangs = {
        # A group may end anywhere.
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
    """A kernel in Triton that is compiled with the config's blocks and options."""
    x, y, z = (*grid, 1, 1)[:3]
    return Kernel(variant, (*arguments, *CONSTANTS), (x, y, z), CONFIG_OPTIONS, takes_amd_options=True)


def reduction(product: Product, splits: Value) -> Kernel:
    """C from the sums in the workspace, [splits, M, N]."""
    partial = Workspace("partial_ptr", product.accumulator)
    numbers = (*sizes(product)[:2], *leading(product, "c"), Integer("SPLIT_K", splits))
    options = (*AROUND_OPTIONS, ("launch_pdl", 1)) if product.starts_early else AROUND_OPTIONS
    return _over_c(REDUCE, (partial, C_POINTER, *product.at_end, *numbers), options)


def slot_rows(product: Product) -> Workspace:
    """Where a kernel leaves the rows of all slots, in C's type."""
    return Workspace("partial_ptr", product.accumulator)


def slot_elements(product: Product) -> Value:
    """Of that, in elements of the accumulators' type."""
    assert product.groups is not None
    size_bytes = DTYPES[product.problem.dtype_c].size_bytes
    return cdiv(M * product.groups.top_k * N * size_bytes, DTYPES[product.accumulator].size_bytes)


def slot_sums(product: Product) -> Kernel:
    """C from the rows of all slots in the workspace, [M * top_k, N] of C's type."""
    numbers = (Integer("N", N, alignment_of(product.problem.N)), *leading(product, "c"))
    constants = (Constant("BINARY", f"B{_SUM_BLOCK_SIZE}"), Constant("BLOCK_SIZE", _SUM_BLOCK_SIZE))
    options = (*AROUND_OPTIONS, ("launch_pdl", 1)) if product.starts_early else AROUND_OPTIONS
    arguments = (slot_rows(product), C_POINTER, *numbers, *constants)
    return Kernel(SUM_SLOTS, arguments, (M * cdiv(N, _SUM_BLOCK_SIZE), 1, 1), options)


def of_groups(product: Product, variant: Variant, a: Argument, b: Argument, last: Arguments, *grid: Value) -> Call:
    """A call for rows in groups with weights through TMA, by descriptor `b`; its grid counts TILES.

    Rows of A that lie anywhere come through pointers, others by `a`; where rows of C are sums, those of slots are added
    up after.
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


# Elements of the partial sums of all tiles, whole tiles of them.
SPLIT_TILES = TILES * SPLIT_K * BLOCK_SIZE_M * BLOCK_SIZE_N


def when_split(elements: Value) -> Value:
    """What is needed with SPLIT_K above 1 only."""
    return where(SPLIT_K > 1, elements, 0)
