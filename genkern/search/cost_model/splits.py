"""The cost model's terms for splitting K: partial sums, and kernels beside the main one."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.families.alignment_copy import copied_operands
from genkern.ops.op import get_op
from genkern.search.cost_model.constants import constants_without_rates

# Bytes of the accumulator's type, fp32 or int32.
_SUM_BYTES = 4
# A partial sum is stored and then counted by an atomic: two latencies in a row. The last program then loads the partial
# sums one after the other from L2, in some 270 clocks each, which is a guess.
_FIX_UP_LATENCIES = 2
_L2_LATENCY_US = 0.15


def sharers(problem: GemmProblem, config: Config, gpu: Gpu) -> int:
    """Return the number of programs that share the tiles beyond the last full wave.

    0 if there are no such tiles, if the family does not share tiles, or if SPLIT_K is 1.
    """
    tiles = -(-problem.M // config.BLOCK_SIZE_M) * -(-problem.N // config.BLOCK_SIZE_N)
    shared = tiles % gpu.compute_units
    if traits_of(config).cost.reduces == "shares" and config.SPLIT_K > 1:
        return min(gpu.compute_units, shared * config.SPLIT_K)
    return 0


def splitting_us(problem: GemmProblem, config: Config, gpu: Gpu) -> float:
    """Return the microseconds that splitting K adds to the config's main kernel; 0 if it does not split."""
    elements = problem.batch * problem.M * problem.N * _SUM_BYTES
    traits = traits_of(config)
    tile_bytes = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N * _SUM_BYTES
    tiles = problem.batch * -(-problem.M // config.BLOCK_SIZE_M) * -(-problem.N // config.BLOCK_SIZE_N)
    if shares := sharers(problem, config, gpu):
        shared = tiles % gpu.compute_units
        owners = -(-shares // shared) + 1
        return _fix_up_us(owners, gpu) + moved_us(2 * (shares + shared) * tile_bytes, gpu)
    if (cluster := traits.cluster_k) > 1:
        # Each sum, except for a program's own columns, goes to another SM once, at most as slowly as through L2.
        return _L2_LATENCY_US + moved_us((cluster - 1) * tiles * tile_bytes, gpu)
    if config.SPLIT_K == 1 or traits.cost.reduces == "shares":
        return 0.0
    if traits.cost.reduces == "semaphore":
        return _fix_up_us(config.SPLIT_K, gpu) + moved_us(2 * config.SPLIT_K * tiles * tile_bytes, gpu)
    # A second kernel reads the partial sums [SPLIT_K, M, N] that the main kernel writes.
    return another_us(gpu) + moved_us(2 * config.SPLIT_K * elements, gpu)


def another_us(gpu: Gpu) -> float:
    """Return the microseconds of a further kernel in the same stream, without the data that it moves."""
    constants = constants_without_rates(gpu)
    return constants.gap_us + constants.kernel_us


def _fix_up_us(summands: int, gpu: Gpu) -> float:
    return _FIX_UP_LATENCIES * constants_without_rates(gpu).latency_us + summands * _L2_LATENCY_US


def moved_us(bytes_moved: int, gpu: Gpu) -> float:
    """Return the time to move `bytes_moved`: through L2 if the written half fits there, else through memory."""
    if bytes_moved / 2 <= gpu.l2_mib * 2**20:
        return bytes_moved / (constants_without_rates(gpu).l2_bytes_per_clock * gpu.clock_mhz * gpu.compute_units)
    return bytes_moved / (gpu.memory_tb_per_s * constants_without_rates(gpu).memory_efficiency * 1e6)


def realigning_us(problem: GemmProblem, config: Config, gpu: Gpu) -> float:
    """Return the microseconds in which the operands that the config copies are read and written; 0 if it copies
    none."""
    if not traits_of(config).realigned:
        return 0.0
    a, b, *_ = get_op(problem.op).operands(problem)
    copied = copied_operands(problem)
    copied_bytes = sum(operand.size_bytes for operand in (a, b) if operand.name in copied)
    return another_us(gpu) + moved_us(2 * copied_bytes, gpu)
