"""Traffic of caches and memory, and the partial sums of a split K."""

from __future__ import annotations

import numpy as np

from genkern.gemm.gpu import Gpu, Rates
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved, columns_of_b, element_bytes
from genkern.search.cost_model.columns import Columns, Numbers

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
