"""What several families cannot do: products that the matrix units refuse, grids that nobody launches, rows of TMA.

Each function returns why not, in one line, or ""; `gpu` None asks what holds on every device. There is no bound on
shared memory or LDS for kernels in Triton: what it takes of it depends on whether it pipelines the loop, and it says
how much with the binary (genkern.farm.occupancy).
"""

from __future__ import annotations

from typing import TypeVar

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.expression import Expression
from genkern.kernels.families.common import REDUCE_BLOCK_SIZE
from genkern.ops.accumulate import PROMOTED_K, promotes_products
from genkern.ops.op import element_bytes, get_op, groups_of, has_exponents, operands_of

# Triton's TRITON_MAX_TENSOR_NUMEL.
MOST_ELEMENTS = 2**20
# The most programs along the second and third dimension of a grid (CUDA programming guide, technical specifications;
# ROCm's device properties say 65,536).
GRID_YZ = 65_535
# HIP launches fewer threads than this along one dimension of a grid (hipModuleLaunchKernel, gridDimX * blockDimX).
_AMD_GRID_THREADS = 2**32
_REDUCE_WARPS = 4
# K of the shortest product of 8-bit operands that Triton takes on NVIDIA (min_dot_size in its backend); AMD has none.
_DOT_K_8_BITS = 32
# What an instruction of wgmma for a width of n takes besides n / 2 accumulators a thread: ptxas (12.8 and 12.9) refuses
# m64n256 with fewer than 154 registers and m64n128 with fewer than 90. It spills anything but these.
_WGMMA_OTHER_REGISTERS = 26
# Rows in memory must start at multiples of this, and what one copy brings of a row must be as long at least
# (cuTensorMapEncodeTiled in the CUDA driver API: globalStrides, boxDim[0] without interleaving).
TMA_BYTES = 16
# Clusters lie within processing clusters of 16 or 18 SMs, so that some SMs are left over. How many of an H200's SMs
# clusters of so many programs have at a time, by cuOccupancyMaxActiveClusters, for programs that take an SM each.
_UNITS, _IN_CLUSTERS = 132, {3: 117, 4: 120, 5: 110, 8: 120}
Units = TypeVar("Units", int, Expression)


def tiles(problem: GemmProblem, config: Config) -> int:
    """Tiles of C, of groups the most that there may be."""
    groups = groups_of(problem)
    tiles_m = groups.most_tiles(problem.M, config.BLOCK_SIZE_M) if groups else -(-problem.M // config.BLOCK_SIZE_M)
    return tiles_m * -(-problem.N // config.BLOCK_SIZE_N)


def units_in_clusters(units: Units, cluster: int) -> Units:
    """SMs of sm_90 that clusters of so many programs have at a time, of so many.

    A cluster that had to wait for a place would begin when all others end.
    """
    return units * _IN_CLUSTERS[cluster] // _UNITS if cluster in _IN_CLUSTERS else units


def splits_limit(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """For kernels that number the splits of all tiles, and of a tile K-blocks and partial sums SPLIT_K times."""
    blocks = -(-problem.K // config.BLOCK_SIZE_K)
    elements = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N
    if max(tiles(problem, config), blocks, elements) * config.SPLIT_K >= INT32:
        return "tiles, K-blocks or partial sums, SPLIT_K times, are more than 32 bits count"
    return ""


def grid_limit(programs: int, num_warps: int, gpu: Gpu | None) -> str:
    """For so many programs along the first dimension of a grid."""
    if programs >= INT32:
        return "more programs than 32 bits count"
    if gpu is not None and gpu.vendor == "amd" and programs * num_warps * gpu.warp_size >= _AMD_GRID_THREADS:
        return "more threads than HIP launches along a dimension"
    return ""


def over_c_limit(problem: GemmProblem, gpu: Gpu | None) -> str:
    """For the kernels around a main one, which take REDUCE_BLOCK_SIZE elements of C per program."""
    return grid_limit(-(-problem.M * problem.N // REDUCE_BLOCK_SIZE), _REDUCE_WARPS, gpu)


def dot_limit(
    problem: GemmProblem, config: Config, gpu: Gpu | None, *, swapped: bool = False, held_tiles: int = 1
) -> str:
    """For tl.dot: whether Triton takes the product, and its accumulators fit where they must be.

    That is a thread's registers for wgmma, and for tcgen05 tensor memory, which holds `held_tiles` of them. Both
    instructions are for tiles of 64 rows (of N, when `swapped`) and groups of four warps, and for float32 as tf32 only.
    """
    if gpu is None or gpu.vendor != "nvidia":
        return ""
    if config.BLOCK_SIZE_K > PROMOTED_K and promotes_products(problem, gpu.arch):
        return f"sums are made in float32 of at most {PROMOTED_K} elements along K (accumulate: full)"
    if config.BLOCK_SIZE_K < _DOT_K_8_BITS and DTYPES[problem.dtype_a].size_bytes == 1:
        return f"Triton refuses a product of 8-bit operands with BLOCK_SIZE_K below {_DOT_K_8_BITS} on NVIDIA"
    if not gpu.has.of_warpgroups or config.num_warps < gpu.has.matrix_warps:
        return ""
    if problem.dtype_a == "fp32" and not get_op(problem.op).as_tf32(problem):
        return ""
    if gpu.has.wgmma and config.num_warps < 16:
        return ""
    rows, columns = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
    if swapped:
        rows, columns = columns, rows
    if rows < gpu.has.matrix_rows:
        return ""
    if gpu.has.wgmma:
        # Warps go along the rows first, 16 each (warpsPerTileV3 and mmaVersionToInstrShape of Triton's NVIDIA backend).
        width = min(gpu.has.matrix_columns, columns // max(1, config.num_warps // (rows // 16)))
        if width // 2 + _WGMMA_OTHER_REGISTERS > gpu.registers_per_unit // (config.num_warps * gpu.warp_size):
            return "a thread has fewer registers than one wgmma of this tile needs, which ptxas refuses"
        return ""
    # With more warps, and for int8 before Triton 3.9, it is mma.sync. Packed bytes are no integers.
    if config.num_warps > 8 or (DTYPES[problem.dtype_a].is_integer and operands_of(problem)[0].is_plain):
        return ""
    columns_there = gpu.has.tensor_memory_columns
    # A tile of 64 rows takes half of them. Triton puts exponents of operands beside accumulators, and then holds fewer.
    taken = max(64, rows) * columns // 128
    if taken * held_tiles > columns_there or (taken == columns_there and has_exponents(problem)):
        return "accumulators do not fit tensor memory"
    return ""


def tma_operands_limit(problem: GemmProblem) -> str:
    """For A and B through TMA."""
    row_a = problem.K if problem.row_major_a else problem.M
    row_b = problem.N if problem.row_major_b else problem.K
    for name, row, size in zip("AB", (row_a, row_b), element_bytes(problem), strict=True):
        if row * size % TMA_BYTES:
            return f"rows of {name} do not start at multiples of 16 bytes, as TMA needs"
    return ""


def tma_output_limit(problem: GemmProblem) -> str:
    """For C through TMA."""
    if problem.N * DTYPES[problem.dtype_c].size_bytes % TMA_BYTES:
        return "rows of C do not start at multiples of 16 bytes, as TMA needs"
    return ""


def tma_box_limit(problem: GemmProblem, config: Config) -> str:
    """For tiles of A and B through TMA; blocks of more elements than a box has Triton copies in pieces.

    A row of A's tile has BLOCK_SIZE_K elements (BLOCK_SIZE_M when column-major), of B's BLOCK_SIZE_N (BLOCK_SIZE_K).
    (H200: 8 rows of a column-major A in int8 are refused when launched.)
    """
    row_a = config.BLOCK_SIZE_K if problem.row_major_a else config.BLOCK_SIZE_M
    row_b = config.BLOCK_SIZE_N if problem.row_major_b else config.BLOCK_SIZE_K
    for row, size in zip((row_a, row_b), element_bytes(problem), strict=True):
        if row * size < TMA_BYTES:
            return "a row of a tile is shorter than the 16 bytes that TMA copies at least"
    return ""
