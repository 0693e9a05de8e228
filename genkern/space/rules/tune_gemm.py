"""The pruning rules of ROCm's tune_gemm, v3.4 (`v34_`) and v2 (`v2_`), as published.

Source of v3.4: prune_configs in python/perf-kernels/tools/tune_gemm/tune_gemm.py, ROCm/triton main_perf.
Source of v2: prune_configs in scripts/amd/gemm/tune_gemm.py as of ROCm/triton pull request 350, and the list in its
README. A rule returns True to drop a configs.
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.columns import Mask, either, most
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import element_bytes


def _widest_mfma(problem: GemmProblem) -> int:
    return 16 if problem.M < 32 or problem.N < 32 else 32


def _needs_split_k(problem: GemmProblem) -> bool:
    return (problem.M < 64 or problem.N < 64) and problem.K > 1024


def v34_mfma_size(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """MFMA instruction wider than M or N.

    tune_gemm v3.4 rule 1: 16x16 instructions only when M < 32 or N < 32.
    """
    return configs.matrix_instr_nonkdim > _widest_mfma(problem)


def v34_mfma4_block_k(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """4x4 MFMA with BLOCK_SIZE_K below 64.

    tune_gemm v3.4 rule 2. It never drops anything, in tune_gemm or here, since the widest instruction is 16 or 32.
    """
    return _widest_mfma(problem) == 4 and configs.BLOCK_SIZE_K < 64


def v34_tile_elements(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Tile of fewer than 64 elements: less than one per lane.

    tune_gemm v3.4 rule 3.
    """
    return configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N < 64


def v34_block_below_mfma(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """BLOCK_SIZE_M or BLOCK_SIZE_N smaller than the MFMA instruction.

    tune_gemm v3.4 rule 4.
    """
    nonkdim = configs.matrix_instr_nonkdim
    return (configs.BLOCK_SIZE_M < nonkdim) | (configs.BLOCK_SIZE_N < nonkdim)


def v34_one_block_is_enough(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """M (or N) fits one MFMA instruction, so its block must be exactly that.

    tune_gemm v3.4 rule 5.
    """
    nonkdim = configs.matrix_instr_nonkdim
    along_m = (problem.M <= nonkdim) & (configs.BLOCK_SIZE_M != nonkdim)
    along_n = (problem.N <= nonkdim) & (configs.BLOCK_SIZE_N != nonkdim)
    return along_m | along_n


def v34_block_over_twice(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """BLOCK_SIZE_M over twice M, or BLOCK_SIZE_N over twice N; 16 is always kept.

    tune_gemm v3.4 rule 6.
    """
    block_m, block_n = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N
    return ((block_m > 2 * problem.M) & (block_m != 16)) | ((block_n > 2 * problem.N) & (block_n != 16))


def v34_split_k_unneeded(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K although M and N are both at least 64, or K is at most 1024.

    tune_gemm v3.4 rule 7 (need_split_k).
    """
    return not _needs_split_k(problem) and configs.SPLIT_K != 1


def v34_split_k_uneven(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K * BLOCK_SIZE_K that does not divide K.

    tune_gemm v3.4 rule 8; without SPLIT_K the kernel masks the last block instead.
    """
    return (configs.SPLIT_K != 1) & (problem.K % (configs.SPLIT_K * configs.BLOCK_SIZE_K) != 0)


def v34_group_m(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """A group of GROUP_SIZE_M tiles taller than M.

    tune_gemm v3.4 rule 9.
    """
    return (configs.GROUP_SIZE_M != 1) & (configs.GROUP_SIZE_M * configs.BLOCK_SIZE_M > problem.M)


def v34_lds(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """More LDS for the tiles of A and B than a workgroup may have.

    tune_gemm v3.4 rule 10: max(A, B) without a pipeline (num_stages <= 1), else (A + B) * (num_stages - 1), with A =
    BLOCK_SIZE_K * BLOCK_SIZE_M * bytes and B likewise. The epilogue is not counted.
    """
    size_a, size_b = element_bytes(problem)
    a = configs.BLOCK_SIZE_K * configs.BLOCK_SIZE_M * size_a
    b = configs.BLOCK_SIZE_K * configs.BLOCK_SIZE_N * size_b
    stages = configs.num_stages
    lds_bytes = either(stages <= 1, most(a, b), (a + b) * (stages - 1))
    return lds_bytes > gpu.shared_bytes_per_block


def v34_large_gemm(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """M and N from 2048: blocks below 64, fewer than 4 warps, or blocks that do not divide M and N.

    tune_gemm v3.4 rule 11; its kernel has no boundary check along M and N. For an M (or N) that 64 does not divide,
    v3.4 keeps no config at all; genkern's kernels mask, so the blocks need not divide such a dimension.
    """
    if problem.M < 2048 or problem.N < 2048:
        return False
    block_m, block_n = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N
    low = (block_m < 64) | (block_n < 64) | (configs.BLOCK_SIZE_K < 64) | (configs.num_warps < 4)
    uneven_m = problem.M % 64 == 0 and problem.M % block_m != 0
    uneven_n = problem.N % 64 == 0 and problem.N % block_n != 0
    return low | uneven_m | uneven_n


def v2_mfma(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """MFMA size other than the one v2 uses for this M and N, or a block that does not suit it.

    tune_gemm v2: BLOCK_SIZE must be equal to or larger than the MFMA instruction, and equal if M (or N) fits one. v2
    did not tune the instruction: 16 if M < 32 or N < 32, else 32 (pull request 366).
    """
    mfma = _widest_mfma(problem)
    block_m, block_n = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N
    below = (configs.matrix_instr_nonkdim != mfma) | (block_m < mfma) | (block_n < mfma)
    return below | (problem.M <= mfma and block_m != mfma) | (problem.N <= mfma and block_n != mfma)


def v2_split_k_unneeded(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K although M and N are both at least 64, or K is at most 1024.

    tune_gemm v2: needed if (M < 64 or N < 64) and K > 1024, else it must be 1.
    """
    return not _needs_split_k(problem) and configs.SPLIT_K != 1


def v2_split_k_uneven(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K * BLOCK_SIZE_K that does not divide K, also when SPLIT_K is 1.

    tune_gemm v2: its kernel has no mask along K.
    """
    return problem.K % (configs.SPLIT_K * configs.BLOCK_SIZE_K) != 0


def v2_group_m(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """A group of GROUP_SIZE_M tiles taller than M.

    tune_gemm v2: GROUP_M * BLOCK_SIZE_M must not exceed M, or GROUP_M must be 1.
    """
    return (configs.GROUP_SIZE_M != 1) & (configs.GROUP_SIZE_M * configs.BLOCK_SIZE_M > problem.M)


def v2_lds(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """BLOCK_SIZE_K = 128 with BLOCK_SIZE_M or BLOCK_SIZE_N = 128.

    tune_gemm v2: too much LDS ("needs further investigation"). It checks no limit of the device.
    """
    return (configs.BLOCK_SIZE_K == 128) & ((configs.BLOCK_SIZE_M == 128) | (configs.BLOCK_SIZE_N == 128))
