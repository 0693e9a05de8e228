"""Limits that several families share: of matrix instructions, of launch grids, and of TMA.

Functions of a problem return the reason why a kernel cannot compute it, in one line, or "". Functions of configs yield
masks with reasons (`genkern.gemm.columns.Refusals`). With None for `gpu` they check only limits of every device. Shared
memory (LDS) of Triton kernels is not limited here: it depends on whether Triton pipelines the loop, and is known once
the binary is compiled (genkern.compile.occupancy).
"""

from __future__ import annotations

from typing import TypeVar

from genkern.gemm.columns import Column, Refusals, least, most
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.contract.expression import Expression
from genkern.kernels.families.common import REDUCE_BLOCK_SIZE
from genkern.ops.accumulate import PROMOTED_K, promotes_products
from genkern.ops.op import element_bytes, get_op, groups_of, has_exponents, operands_of

# Triton's TRITON_MAX_TENSOR_NUMEL.
MOST_ELEMENTS = 2**20
# Largest number of programs along the second and third dimension of a grid (CUDA programming guide, technical
# specifications; ROCm's device properties say 65,536).
GRID_YZ = 65_535
# HIP launches fewer threads than this along one dimension of a grid (hipModuleLaunchKernel, gridDimX * blockDimX).
_AMD_GRID_THREADS = 2**32
_REDUCE_WARPS = 4
# Shortest product of 8-bit operands along K that Triton takes on NVIDIA (min_dot_size in its backend). AMD has no
# limit.
_DOT_K_8_BITS = 32
# Registers per thread that a wgmma of width n needs in addition to its n / 2 accumulators: ptxas (12.8 and 12.9)
# refuses m64n256 with fewer than 154 registers and m64n128 with fewer than 90. It can spill all other registers.
_WGMMA_OTHER_REGISTERS = 26
# Rows in memory must start at multiples of this, and a copy must load at least as much of each row
# (cuTensorMapEncodeTiled in the CUDA driver API: globalStrides, boxDim[0] without interleaving).
TMA_BYTES = 16
# Clusters lie within processing clusters of 16 or 18 SMs, so that some SMs are left over. _IN_CLUSTERS: by cluster
# size, the number of an H200's SMs that clusters occupy at the same time, by cuOccupancyMaxActiveClusters, for programs
# that need one SM each.
_UNITS, _IN_CLUSTERS = 132, {3: 117, 4: 120, 5: 110, 8: 120}
Units = TypeVar("Units", int, Expression)


def tiles(problem: GemmProblem, configs: Config | ConfigTable) -> Column:
    """Return the number of tiles of C; for rows in groups, the largest number that the groups can have."""
    groups = groups_of(problem)
    tiles_m = groups.most_tiles(problem.M, configs.BLOCK_SIZE_M) if groups else -(-problem.M // configs.BLOCK_SIZE_M)
    return tiles_m * -(-problem.N // configs.BLOCK_SIZE_N)


def units_in_clusters(units: Units, cluster: int) -> Units:
    """Return how many of `units` SMs (sm_90) clusters of `cluster` programs can occupy at the same time.

    A cluster that has to wait for a place starts only when all others end.
    """
    return units * _IN_CLUSTERS[cluster] // _UNITS if cluster in _IN_CLUSTERS else units


def too_many(count: Column, times: Column) -> Column:
    """Return a mask: `count` times `times` is more than 32 bits count. The product itself may exceed 64 bits."""
    return count >= -(-INT32 // times)


def splits_limit(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Limit for kernels that count the splits of all tiles, the K-blocks and the partial sums of a tile in 32 bits."""
    blocks = -(-problem.K // configs.BLOCK_SIZE_K)
    elements = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N
    counted = most(most(tiles(problem, configs), blocks), elements)
    yield (
        too_many(counted, configs.SPLIT_K),
        "SPLIT_K times the tiles, K-blocks or partial sums are more than 32 bits count",
    )


def grid_limit(programs: Column, num_warps: Column, gpu: Gpu | None) -> Refusals:
    """Limit for a grid with `programs` programs along its first dimension."""
    yield programs >= INT32, "more programs than 32 bits count"
    if gpu is not None and gpu.vendor == "amd":
        threads = least(programs, INT32) * num_warps * gpu.warp_size
        yield threads >= _AMD_GRID_THREADS, "more threads than HIP launches along one dimension of a grid"


def over_c_limit(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Limit for the kernels around the main kernel, which compute REDUCE_BLOCK_SIZE elements of C per program."""
    programs = -(-problem.M * problem.N // REDUCE_BLOCK_SIZE)
    return next((reason for mask, reason in grid_limit(programs, _REDUCE_WARPS, gpu) if mask), "")


def dot_limit(
    problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None, *, swapped: bool = False, held_tiles: Column = 1
) -> Refusals:
    """Limit for tl.dot: whether Triton compiles the product and its accumulators fit.

    wgmma keeps accumulators in registers; tcgen05 keeps them in tensor memory, which must hold `held_tiles` of them.
    Both instructions need tiles of at least 64 rows (of N, if `swapped`) and groups of four warps, and multiply float32
    only as tf32.
    """
    if gpu is None or gpu.vendor != "nvidia":
        return
    if promotes_products(problem, gpu.arch):
        yield (
            configs.BLOCK_SIZE_K > PROMOTED_K,
            f"BLOCK_SIZE_K is above {PROMOTED_K}, the most elements summed before float32 (accumulate: full)",
        )
    if DTYPES[problem.dtype_a].size_bytes == 1:
        yield (
            configs.BLOCK_SIZE_K < _DOT_K_8_BITS,
            f"Triton refuses a product of 8-bit operands with BLOCK_SIZE_K below {_DOT_K_8_BITS} on NVIDIA",
        )
    if not gpu.has.of_warpgroups or (problem.dtype_a == "fp32" and not get_op(problem.op).as_tf32(problem)):
        return
    warps = configs.num_warps
    rows, columns = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N
    if swapped:
        rows, columns = columns, rows
    by_warpgroups = (warps >= gpu.has.matrix_warps) & (rows >= gpu.has.matrix_rows)
    if gpu.has.wgmma:
        # Warps are placed along the rows first, 16 rows each (warpsPerTileV3 and mmaVersionToInstrShape of Triton's
        # NVIDIA backend).
        width = least(gpu.has.matrix_columns, columns // most(1, warps // most(1, rows // 16)))
        needed = width // 2 + _WGMMA_OTHER_REGISTERS
        yield (
            by_warpgroups & (warps >= 16) & (needed > gpu.registers_per_unit // (warps * gpu.warp_size)),
            "ptxas refuses this tile: one wgmma needs more registers than a thread has",
        )
        return
    # With more warps, and for int8 before Triton 3.9, Triton uses mma.sync. Packed bytes are not integers.
    if DTYPES[problem.dtype_a].is_integer and operands_of(problem)[0].is_plain:
        return
    columns_there = gpu.has.tensor_memory_columns
    # A tile of 64 rows takes half of the columns. Triton stores the operands' exponents beside the accumulators, so
    # that fewer fit.
    taken = most(64, rows) * columns // 128
    too_large = taken * held_tiles > columns_there
    if has_exponents(problem):
        too_large = too_large | (taken == columns_there)
    yield by_warpgroups & (warps <= 8) & too_large, "accumulators do not fit tensor memory"


def tma_operands_limit(problem: GemmProblem) -> str:
    """Limit for loads of A and B through TMA."""
    row_a = problem.K if problem.row_major_a else problem.M
    row_b = problem.N if problem.row_major_b else problem.K
    for name, row, size in zip("AB", (row_a, row_b), element_bytes(problem), strict=True):
        if row * size % TMA_BYTES:
            return f"rows of {name} do not start at multiples of 16 bytes, as TMA needs"
    return ""


def tma_output_limit(problem: GemmProblem) -> str:
    """Limit for stores of C through TMA."""
    if problem.N * DTYPES[problem.dtype_c].size_bytes % TMA_BYTES:
        return "rows of C do not start at multiples of 16 bytes, as TMA needs"
    return ""


def tma_box_limit(problem: GemmProblem, configs: ConfigTable) -> Refusals:
    """Limit for tiles of A and B that are loaded through TMA. Triton splits a tile that is larger than a TMA box.

    A row of A's tile has BLOCK_SIZE_K elements (BLOCK_SIZE_M if A is column-major), a row of B's BLOCK_SIZE_N
    (BLOCK_SIZE_K if B is stored as [N, K]). An H200 refuses a launch whose tile has 8 rows of a column-major int8 A.
    """
    row_a = configs.BLOCK_SIZE_K if problem.row_major_a else configs.BLOCK_SIZE_M
    row_b = configs.BLOCK_SIZE_N if problem.row_major_b else configs.BLOCK_SIZE_K
    size_a, size_b = element_bytes(problem)
    yield (
        (row_a * size_a < TMA_BYTES) | (row_b * size_b < TMA_BYTES),
        "a row of a tile is shorter than 16 bytes, the least that TMA copies",
    )
