"""Limits that several families share: of matrix instructions, of launch grids, and of TMA.

Each function returns the reason why a kernel cannot compute the problem, in one line, or "". With None for `gpu` it
checks only limits of every device. Shared memory (LDS) of Triton kernels is not limited here: it depends on whether
Triton pipelines the loop, and is known once the binary is compiled (genkern.farm.occupancy).
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


def tiles(problem: GemmProblem, config: Config) -> int:
    """Return the number of tiles of C; for rows in groups, the largest number that the groups can have."""
    groups = groups_of(problem)
    tiles_m = groups.most_tiles(problem.M, config.BLOCK_SIZE_M) if groups else -(-problem.M // config.BLOCK_SIZE_M)
    return tiles_m * -(-problem.N // config.BLOCK_SIZE_N)


def units_in_clusters(units: Units, cluster: int) -> Units:
    """Return how many of `units` SMs (sm_90) clusters of `cluster` programs can occupy at the same time.

    A cluster that has to wait for a place starts only when all others end.
    """
    return units * _IN_CLUSTERS[cluster] // _UNITS if cluster in _IN_CLUSTERS else units


def splits_limit(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Limit for kernels that count the splits of all tiles, the K-blocks and the partial sums of a tile in 32 bits."""
    blocks = -(-problem.K // config.BLOCK_SIZE_K)
    elements = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N
    if max(tiles(problem, config), blocks, elements) * config.SPLIT_K >= INT32:
        return "SPLIT_K times the tiles, K-blocks or partial sums are more than 32 bits count"
    return ""


def grid_limit(programs: int, num_warps: int, gpu: Gpu | None) -> str:
    """Limit for a grid with `programs` programs along its first dimension."""
    if programs >= INT32:
        return "more programs than 32 bits count"
    if gpu is not None and gpu.vendor == "amd" and programs * num_warps * gpu.warp_size >= _AMD_GRID_THREADS:
        return "more threads than HIP launches along one dimension of a grid"
    return ""


def over_c_limit(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Limit for the kernels around the main kernel, which compute REDUCE_BLOCK_SIZE elements of C per program."""
    return grid_limit(-(-problem.M * problem.N // REDUCE_BLOCK_SIZE), _REDUCE_WARPS, gpu)


def dot_limit(
    problem: GemmProblem, config: Config, gpu: Gpu | None, *, swapped: bool = False, held_tiles: int = 1
) -> str:
    """Limit for tl.dot: whether Triton compiles the product and its accumulators fit.

    wgmma keeps accumulators in registers; tcgen05 keeps them in tensor memory, which must hold `held_tiles` of them.
    Both instructions need tiles of at least 64 rows (of N, if `swapped`) and groups of four warps, and multiply float32
    only as tf32.
    """
    if gpu is None or gpu.vendor != "nvidia":
        return ""
    if config.BLOCK_SIZE_K > PROMOTED_K and promotes_products(problem, gpu.arch):
        return f"BLOCK_SIZE_K is above {PROMOTED_K}, the most elements summed before float32 (accumulate: full)"
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
        # Warps are placed along the rows first, 16 rows each (warpsPerTileV3 and mmaVersionToInstrShape of Triton's
        # NVIDIA backend).
        width = min(gpu.has.matrix_columns, columns // max(1, config.num_warps // (rows // 16)))
        if width // 2 + _WGMMA_OTHER_REGISTERS > gpu.registers_per_unit // (config.num_warps * gpu.warp_size):
            return "ptxas refuses this tile: one wgmma needs more registers than a thread has"
        return ""
    # With more warps, and for int8 before Triton 3.9, Triton uses mma.sync. Packed bytes are not integers.
    if config.num_warps > 8 or (DTYPES[problem.dtype_a].is_integer and operands_of(problem)[0].is_plain):
        return ""
    columns_there = gpu.has.tensor_memory_columns
    # A tile of 64 rows takes half of the columns. Triton stores the operands' exponents beside the accumulators, so
    # that fewer fit.
    taken = max(64, rows) * columns // 128
    if taken * held_tiles > columns_there or (taken == columns_there and has_exponents(problem)):
        return "accumulators do not fit tensor memory"
    return ""


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


def tma_box_limit(problem: GemmProblem, config: Config) -> str:
    """Limit for tiles of A and B that are loaded through TMA. Triton splits a tile that is larger than a TMA box.

    A row of A's tile has BLOCK_SIZE_K elements (BLOCK_SIZE_M if A is column-major), a row of B's BLOCK_SIZE_N
    (BLOCK_SIZE_K if B is stored as [N, K]). An H200 refuses a launch whose tile has 8 rows of a column-major int8 A.
    """
    row_a = config.BLOCK_SIZE_K if problem.row_major_a else config.BLOCK_SIZE_M
    row_b = config.BLOCK_SIZE_N if problem.row_major_b else config.BLOCK_SIZE_K
    for row, size in zip((row_a, row_b), element_bytes(problem), strict=True):
        if row * size < TMA_BYTES:
            return "a row of a tile is shorter than 16 bytes, the least that TMA copies"
    return ""
