"""genkern's own pruning rules for NVIDIA targets: shared memory, warpgroup instructions, TMA.

The shared-memory formulas equal what Triton 3.7 allocates for these kernels on sm_80, sm_90 and sm_100 (metadata.shared
of compiled kernels). A rule returns True to drop a configs.
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.columns import Column, Mask, either, is_in, most, negated
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.kernels.catalogue import traits_of
from genkern.ops.op import columns_of_b, element_bytes, operands_of
from genkern.space.rules.tiles import covering_block

# Barriers and descriptors of the TMA pipeline, rounded up: 8 bytes per stage, and up to 48 more on sm_100. Between
# groups of warps there are 16 more per stage.
_BARRIER_BYTES = 128
_GROUP_BARRIER_BYTES = 16
# Before this release Triton does not use tcgen05 for int8.
_TCGEN05_INT8_FROM = (3, 9)
# Up to this M the time goes into reading the weights, whatever the tile is.
_WEIGHTS_BOUND_M = 128


def _warpgroup_mma(configs: ConfigTable) -> Mask:
    """Return whether Triton uses wgmma (sm_90) or tcgen05 (sm_100): for 64 rows and whole groups of 4 warps."""
    rows = configs.BLOCK_SIZE_N if traits_of(configs).swapped else configs.BLOCK_SIZE_M
    return (rows >= 64) & (configs.num_warps % 4 == 0)


def _shared_bytes(problem: GemmProblem, configs: ConfigTable, buffers: Column) -> Column:
    size_a, size_b = element_bytes(problem)
    a = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_K * size_a
    b = configs.BLOCK_SIZE_N * configs.BLOCK_SIZE_K * size_b * columns_of_b(problem)
    traits = traits_of(configs)
    if not traits.stores_tma:
        return (a + b) * buffers + (_BARRIER_BYTES if traits.uses_tma else 0)
    c = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N * DTYPES[problem.dtype_c].size_bytes
    between_groups = _GROUP_BARRIER_BYTES * configs.num_stages if configs.specialized else 0
    return (a + b) * buffers + c + _BARRIER_BYTES + between_groups


def shared_memory_mma(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """More shared memory than a block may have, for targets without warpgroup instructions.

    genkern: mma.sync reads its operands into registers, so Triton keeps num_stages - 1 tiles of A and B.
    """
    return _shared_bytes(problem, configs, most(1, configs.num_stages - 1)) > gpu.shared_bytes_per_block


def shared_memory_warpgroup(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """More shared memory than a block may have, for targets with warpgroup instructions (sm_90, sm_100).

    genkern: wgmma and tcgen05 read A and B from shared memory while the next tiles arrive, so num_stages tiles are
    alive (num_stages - 1 if the tile is too small for these instructions). The TMA epilogue stages the tile of C in
    addition. The memory for a bias on sm_100 (none, half or all of the accumulators, with 3.6 to 3.9) is not counted
    here but in genkern.compile.occupancy, once the kernel is compiled.
    """
    buffers = either(_warpgroup_mma(configs), configs.num_stages, most(1, configs.num_stages - 1))
    return _shared_bytes(problem, configs, buffers) > gpu.shared_bytes_per_block


def specialized_without_tcgen05(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """persistent_tma_specialized if Triton does not use tcgen05 for the target, tile, number of warps or type.

    genkern: for sm_90 it compiles like persistent_tma. sm_120 and small tiles multiply by mma.sync (fp32 by FMA), whose
    accumulators need the registers that the extra warps take. tcgen05 needs 64 rows, and for int8 Triton 3.9. With 4 or
    8 warps (8 or 12 with the warps that Triton adds) a thread has 256 or 168 registers; with 16 it has 96, and Triton
    uses mma.sync. (Compiled by 3.6, 3.7 and 3.9.)
    """
    if not configs.specialized:
        return False
    types = {operand.dtype for operand in operands_of(problem)[:2] if operand.is_plain}
    by_type = "fp32" in types or ("int8" in types and triton_release() < _TCGEN05_INT8_FROM)
    if by_type or not gpu.has.tcgen05:
        return True
    return (configs.BLOCK_SIZE_M < 64) | negated(is_in(configs.num_warps, (4, 8)))


def warpgroup_needs_4_warps(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """64 rows or more with a number of warps that is not a multiple of 4.

    genkern: wgmma and tcgen05 are issued by warpgroups of 4. Otherwise Triton falls back to mma.sync, which runs at
    about half the rate on sm_90.
    """
    return (configs.BLOCK_SIZE_M >= 64) & (configs.num_warps % 4 != 0)


def warpgroup_needs_64_rows(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """BLOCK_SIZE_M below 64 although M is over 64.

    genkern: wgmma and tcgen05 need 64 rows. Smaller tiles fall back to mma.sync, and read the weights once per row of
    tiles. Up to M = 64 they may win by less padding and more parallelism.
    """
    return problem.M > 64 and configs.BLOCK_SIZE_M < 64


def tile_over_problem_warpgroup(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Block larger than the next power of two of its dimension; 16, and 64 rows for wgmma, are always kept.

    genkern: as tile_over_problem, but a small M may still use the smallest warpgroup instruction.
    """
    block_m = configs.BLOCK_SIZE_M
    return (
        ((block_m != 64) & (block_m > covering_block(problem.M)))
        | (configs.BLOCK_SIZE_N > covering_block(problem.N))
        | (configs.BLOCK_SIZE_K > max(32, covering_block(problem.K)))
    )


def block_k_thin(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """BLOCK_SIZE_K below 64 bytes although M is at most 128.

    genkern: then the time goes into reading the weights, and rows of less than two 32-byte sectors waste memory
    requests and loop iterations. A block that covers K is kept.
    """
    block_k = configs.BLOCK_SIZE_K
    if problem.M > _WEIGHTS_BOUND_M:
        return False
    return (block_k < problem.K) & (block_k * element_bytes(problem)[1] < 64)
