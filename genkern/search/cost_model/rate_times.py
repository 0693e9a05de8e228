"""The times of many configs at once on a GPU with known rates (`genkern.gemm.gpu.Rates`).

Per CU, rounds of resident workgroups step along K. A step combines the times of matrix instructions, LDS, loads, and of
the latency that neither the pipeline nor other workgroups hide; these overlap in part. The kernel combines the time of
its busiest CU with the traffic of L2, last-level cache and memory, which overlap in part too. Launches, and sums of a
split K, are added. genkern has not measured any of it: the model orders candidates, and its times in microseconds have
an unknown error.
"""

from __future__ import annotations

import numpy as np

from genkern.gemm.gpu import Gpu, Rates
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved, columns_of_b, element_bytes, row_tiles
from genkern.search.cost_model.columns import Columns, Numbers, each
from genkern.search.cost_model.compute_unit import (
    depth,
    lds_clocks,
    load_clocks,
    loaded_bytes,
    matrix_clocks,
    registers_of,
    resident,
)

# Partial overlap: times are combined by the p-norm; for a large p only the longest counts. Chosen together with the
# rates (gpus.yaml).
_NORM_OF_STEP, _NORM_OF_KERNEL = 3.5, 2.3


def times_us(problem: GemmProblem, gpu: Gpu, rates: Rates, columns: Columns, peak_tflops: float) -> Numbers:
    """Return the microseconds [configs] of a call, including all kernels of the config; infinite if it cannot launch.

    rates: the GPU's own, or those fitted on it
    peak_tflops: the GPU's peak for the type in which the problem is multiplied
    """
    block_m, split, warps = columns["BLOCK_SIZE_M"], columns["SPLIT_K"], columns["num_warps"]
    tiles = each(block_m, lambda block: row_tiles(problem, block)), np.ceil(problem.N / columns["BLOCK_SIZE_N"])
    blocks = np.ceil(problem.K / columns["BLOCK_SIZE_K"])
    all_tiles = tiles[0] * tiles[1] * problem.batch * columns_of_b(problem)
    steps = np.ceil(blocks / split)

    registers = registers_of(problem, gpu, columns)
    fit = resident(problem, gpu, columns, registers)
    busiest = np.ceil(all_tiles * split / gpu.compute_units)
    at_once = np.minimum(np.maximum(fit, 1), busiest)
    matrix = matrix_clocks(problem, gpu, rates, columns, peak_tflops) / gpu.clock_mhz
    lds = lds_clocks(problem, rates, columns) / gpu.clock_mhz
    load = load_clocks(problem, gpu, rates, columns, registers) / gpu.clock_mhz
    ahead = depth(problem, gpu, columns)

    def round_us(workgroups: Numbers) -> Numbers:
        """Return the time of `workgroups` workgroups of a CU, from their start to the last byte of their tiles."""
        # With few waves some SIMDs are idle.
        matrix_us = workgroups * matrix * gpu.simds_per_unit / np.minimum(gpu.simds_per_unit, workgroups * warps)
        # Loads of a step arrive while another step is multiplied; without a pipeline everything is in one chain.
        arrives_us = rates.latency_us + load
        chain_us = np.where(ahead > 0, arrives_us / np.maximum(ahead, 1), arrives_us + lds + matrix_us / workgroups)
        step_us = _overlapped(_NORM_OF_STEP, matrix_us, workgroups * lds, workgroups * load, chain_us)
        return steps * (step_us + rates.step_us / workgroups) + rates.start_us + rates.latency_us

    rounds, rest = np.divmod(busiest, at_once)
    units_us = rounds * round_us(at_once) + np.where(rest > 0, round_us(np.maximum(rest, 1)), 0.0)
    l2_us = all_tiles * blocks * np.add(*loaded_bytes(problem, columns)) / rates.l2_tb_per_s * 1e-6
    behind_us = behind_l2_us(problem, gpu, rates, columns, tiles, at_once)
    kernel_us = rates.kernel_us + _overlapped(_NORM_OF_KERNEL, units_us, l2_us, *behind_us)
    return np.where(fit > 0, kernel_us + splitting_us(problem, gpu, rates, columns), np.inf)


def _overlapped(norm: float, *times_us: Numbers) -> Numbers:
    longest = np.maximum.reduce(times_us)
    total: Numbers = longest * sum((each_us / longest) ** norm for each_us in times_us) ** (1 / norm)
    return total


# Bytes of the accumulator's type, fp32 or int32.
_SUM_BYTES = 4


def behind_l2_us(
    problem: GemmProblem, gpu: Gpu, rates: Rates, columns: Columns, tiles: tuple[Numbers, Numbers], resident: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the microseconds [configs] of last-level cache and of memory, for the requests of all L2 caches.

    `tiles` are the numbers of tiles along M and along N. Tiles that run together on an XCD cover as square a part of C
    as possible; the XCD's L2 requests each row and each column of it once.
    """
    size_a, size_b = element_bytes(problem)
    block_m, block_n = columns["BLOCK_SIZE_M"], columns["BLOCK_SIZE_N"]
    tiles_m, tiles_n = tiles
    units = gpu.compute_units / gpu.xcds
    together = np.maximum(1, np.minimum(np.ceil(tiles_m * tiles_n / gpu.xcds), units * resident))
    down = np.clip(np.sqrt(together * block_n / block_m), 1, np.minimum(tiles_m, together))
    across = np.minimum(tiles_n, together / down)
    of_set = np.minimum(down * block_m, problem.M) * size_a + np.minimum(across * block_n, problem.N) * size_b
    asked = problem.batch * tiles_m * tiles_n / (down * across) * of_set * problem.K
    least = float(bytes_moved(problem))
    missed = max(0.0, 1.0 - gpu.last_level_cache_mib * 2**20 / max(1.0, least))
    moved = least + missed * np.maximum(0.0, asked - least)
    memory_tb_per_s = gpu.memory_tb_per_s * rates.memory_share
    return asked / rates.last_level_tb_per_s * 1e-6, moved / memory_tb_per_s * 1e-6


def splitting_us(problem: GemmProblem, gpu: Gpu, rates: Rates, columns: Columns) -> Numbers:
    """Return the microseconds [configs] of partial sums: written, then read by a second kernel or a tile's last
    program."""
    split = columns["SPLIT_K"]
    moved = 2 * split * problem.batch * columns_of_b(problem) * problem.M * problem.N * _SUM_BYTES
    # Partial sums are read from caches if they fit; those of other XCDs are behind L2.
    cached = moved / 2 <= gpu.last_level_cache_mib * 2**20
    tb_per_s = np.where(cached, rates.last_level_tb_per_s, gpu.memory_tb_per_s * rates.memory_share)
    inside, apart = 2 * rates.latency_us, rates.gap_us + rates.kernel_us
    waits = np.where(columns["in_one_kernel"] > 0, inside, apart)
    return np.where(split > 1, waits + moved / tb_per_s * 1e-6, 0.0)
