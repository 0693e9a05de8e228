"""What splitting K costs, for the predictor: partial sums, and the kernels around the main one."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of
from genkern.search.calibrated.constants import constants_without_rates

# The accumulator's type, fp32 or int32.
_SUM_BYTES = 4
# A partial sum is stored and counted by an atomic: two latencies in a row. Then the last program loads one partial sum
# after the other, each from L2: some 270 clocks, a guess that nothing here has measured.
_FIX_UP_LATENCIES = 2
_L2_LATENCY_US = 0.15


def sharers(problem: GemmProblem, config: Config, gpu: Gpu) -> int:
    """Programs that share the tiles beyond the last full wave; 0 where there are none, or the family does not share."""
    tiles = -(-problem.M // config.BLOCK_SIZE_M) * -(-problem.N // config.BLOCK_SIZE_N)
    shared = tiles % gpu.compute_units
    if form_of(config).cost.reduces == "shares" and config.SPLIT_K > 1:
        return min(gpu.compute_units, shared * config.SPLIT_K)
    return 0


def splitting_us(problem: GemmProblem, config: Config, gpu: Gpu) -> float:
    """Microseconds that the config's way of splitting K adds to its main kernel; 0 where it does not split."""
    elements = problem.batch * problem.M * problem.N * _SUM_BYTES
    form = form_of(config)
    tile_bytes = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N * _SUM_BYTES
    tiles = problem.batch * -(-problem.M // config.BLOCK_SIZE_M) * -(-problem.N // config.BLOCK_SIZE_N)
    if shares := sharers(problem, config, gpu):
        shared = tiles % gpu.compute_units
        owners = -(-shares // shared) + 1
        return _fix_up_us(owners, gpu) + moved_us(2 * (shares + shared) * tile_bytes, gpu)
    if (cluster := form.cluster_k) > 1:
        # Each sum but those of a program's own columns goes to another SM once, at most as slowly as by way of L2.
        return _L2_LATENCY_US + moved_us((cluster - 1) * tiles * tile_bytes, gpu)
    if config.SPLIT_K == 1 or form.cost.reduces == "shares":
        return 0.0
    if form.cost.reduces == "semaphore":
        return _fix_up_us(config.SPLIT_K, gpu) + moved_us(2 * config.SPLIT_K * tiles * tile_bytes, gpu)
    # Partial sums [SPLIT_K, M, N] written and read again by a second kernel.
    return another_us(gpu) + moved_us(2 * config.SPLIT_K * elements, gpu)


def another_us(gpu: Gpu) -> float:
    """Microseconds of a further kernel in the same stream, beside what it moves."""
    constants = constants_without_rates(gpu)
    return constants.gap_us + constants.kernel_us


def _fix_up_us(summands: int, gpu: Gpu) -> float:
    return _FIX_UP_LATENCIES * constants_without_rates(gpu).latency_us + summands * _L2_LATENCY_US


def moved_us(bytes_moved: int, gpu: Gpu) -> float:
    """Time to move so many bytes, through L2 while half of them, what was written, fits there."""
    if bytes_moved / 2 <= gpu.l2_mib * 2**20:
        return bytes_moved / (constants_without_rates(gpu).l2_bytes_per_clock * gpu.clock_mhz * gpu.compute_units)
    return bytes_moved / (gpu.memory_tb_per_s * constants_without_rates(gpu).memory_efficiency * 1e6)
