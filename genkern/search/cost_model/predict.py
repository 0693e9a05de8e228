"""The cost model: predicts a candidate's time from a roofline and its occupancy.

If no times were recorded on the GPU's architecture, it orders configs, and its times are printed
(`genkern.search.guided.predicted_times`). Otherwise it is a feature of the model of times.

The model, per compute unit: rounds of resident workgroups step along K. A step takes as long as the slowest of matrix
    instructions, shared-memory reads, L2 reads, and the latency that the pipeline does not hide. The kernel takes at
    least as long as its device-memory traffic. The model ranks configs; it does not replace a measurement.

GPUs with known rates have a model of their own, which predicts many configs at once (`genkern.search.rates`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence

from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.catalogue import k_shares, traits_of
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import bytes_moved, columns_of_b, element_bytes, groups_of, row_tiles
from genkern.search.cost_model.constants import constants_without_rates, rates_for
from genkern.search.cost_model.cute_waves import programs_us
from genkern.search.cost_model.loads import is_pipelined, lane_bytes, load_clocks, resident_workgroups
from genkern.search.cost_model.splits import realigning_us, sharers, splitting_us

# The NVIDIA constants, here and in `calibrated.constants`, were fitted to 2,166 timings of 134 tiles and 7 sizes on an
# H200 (bf16, Triton 3.6, cold weights). They give a rank correlation of 0.84 to 0.95 per size, the best of the first 10
# within 1 % of the best, and times within 23 % (one sigma). The AMD values are scaled from documents, not measured.

# Number of chains of load and product that overlap in a loop that is not pipelined: fewer than one, since the copy to
# shared memory is part of the chain as well.
_UNPIPELINED = 0.75
# A wave issues matrix instructions only while its operands are ready: two waves per SIMD are needed to keep the unit
# busy. wgmma and tcgen05 are asynchronous, so that one warp per SIMD is enough.
_WAVES_TO_FILL = 2
# Multiplications and additions of one unit without matrix instructions: 128 lanes of an SM, or of a CU by packed ones.
_VECTOR_FLOPS_PER_CLOCK = 256
# The value of GROUP_SIZE_M to try first: good binaries are hardly slower with it than with the best value (H200;
# figures in screening.py), while with 1 they took up to 1.68 times as long.
_USUAL_GROUP_SIZE_M = 8
BUT_GROUP_SIZE_M = operator.attrgetter(*(name for name in CONFIG_FIELDS if name != "GROUP_SIZE_M"))


def promising_first(problem: GemmProblem, configs: Iterable[Config], gpu: Gpu) -> list[Config]:
    """Return `configs` in the order in which to compile and launch them: by predicted time, without knowledge of
    binaries.

    A good time early in the search lets the screening recognise hopeless candidates. Configs that differ only in
    GROUP_SIZE_M stand together, with the value nearest to 8 first: its time tells how fast the other values can be. On
    GPUs with rates, variants of one tile are spread out (`genkern.search.cost_model.variants`).
    """
    siblings: dict[tuple[object, ...], list[Config]] = {}
    for config in configs:
        siblings.setdefault(BUT_GROUP_SIZE_M(config), []).append(config)
    for group in siblings.values():
        group.sort(key=from_usual)
    groups = list(siblings.values())
    firsts = [group[0] for group in groups]
    times_us = predicted_us(problem, firsts, gpu)
    if gpu.rates is not None:
        times_us = _apart(firsts, times_us)
    order = sorted(range(len(groups)), key=times_us.__getitem__)
    return [config for place in order for config in groups[place]]


def predicted_us(
    problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, needs: Sequence[Resources] | None = None
) -> list[float]:
    """Return `predict_us` of each config; `needs` [configs] are the resources of their binaries, None if unknown."""
    if gpu.rates is not None:
        return _by_rates_us(problem, configs, needs, gpu)
    each_needs = [Resources()] * len(configs) if needs is None else needs
    return [predict_us(problem, config, each, gpu) for config, each in zip(configs, each_needs, strict=True)]


def _by_rates_us(
    problem: GemmProblem, configs: Sequence[Config], needs: Sequence[Resources] | None, gpu: Gpu
) -> list[float]:
    # Imports NumPy, which nothing else at the start of a run needs.
    from genkern.search.cost_model.columns import columns_of
    from genkern.search.cost_model.rate_times import times_us

    if not configs:
        return []
    times = times_us(problem, gpu, rates_for(gpu), columns_of(configs, needs), peak_tflops(problem, gpu))
    found: list[float] = times.tolist()
    return found


def _apart(configs: Sequence[Config], times_us: Sequence[float]) -> list[float]:
    import numpy as np

    from genkern.search.cost_model.variants import variants_octaves

    octaves = np.log2(np.array(times_us))
    return (octaves + variants_octaves(configs, octaves)).tolist()  # type: ignore[no-any-return]


def from_usual(config: Config) -> tuple[int, int]:
    return abs(config.GROUP_SIZE_M - _USUAL_GROUP_SIZE_M), config.GROUP_SIZE_M


def predict_us(problem: GemmProblem, config: Config, resources: Resources, gpu: Gpu) -> float:
    """Return the predicted time of one call in microseconds, including all kernels of the config.

    The time is never below what the peaks of compute and bandwidth allow, and infinite if the kernel cannot launch.
    Equal arguments give equal results.
    """
    if gpu.rates is not None:
        return _by_rates_us(problem, [config], [resources], gpu)[0]
    per_unit = resident_workgroups(problem, config, resources, gpu)
    if per_unit == 0:
        return math.inf
    block_m, block_n, split_k = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, k_shares(config)
    tiles_m, tiles_n = row_tiles(problem, block_m), _ceil(problem.N, block_n)
    shares = sharers(problem, config, gpu)
    if shares:
        split_k = 1
    steps = _ceil(_ceil(problem.K, config.BLOCK_SIZE_K), split_k)
    tiles = tiles_m * tiles_n * split_k * problem.batch * columns_of_b(problem)

    if (tile_wave := traits_of(config).cost.tile_wave) is not None:
        unit_tflops = peak_tflops(problem, gpu) / gpu.compute_units * constants_without_rates(gpu).matrix_efficiency
        tiles_us = programs_us(problem, config, tile_wave, gpu, unit_tflops)
    elif shares:
        # One program per unit: whole tiles, then an equal share of the remaining ones.
        whole, shared = divmod(tiles, gpu.compute_units)
        tiles_us = whole * _round_us(problem, config, resources, gpu, 1, steps)
        tiles_us += _round_us(problem, config, resources, gpu, 1, _ceil(shared * steps, shares))
    else:
        # Wave quantisation: the unit with the most tiles ends last. Its tiles run `resident` at a time.
        busiest = _ceil(tiles, gpu.compute_units)
        resident = min(per_unit, busiest)
        rounds, rest = divmod(busiest, resident)
        tiles_us = rounds * _round_us(problem, config, resources, gpu, resident, steps)
        if rest:
            tiles_us += _round_us(problem, config, resources, gpu, rest, steps)

    kernel_us = constants_without_rates(gpu).kernel_us + max(
        tiles_us, _traffic_us(problem, config, gpu, tiles_m, tiles_n, per_unit)
    )
    return kernel_us + splitting_us(problem, config, gpu) + realigning_us(problem, config, gpu)


def _round_us(problem: GemmProblem, config: Config, resources: Resources, gpu: Gpu, resident: int, steps: int) -> float:
    """Return the time in which `resident` workgroups of one unit compute one tile each, in `steps` steps of
    BLOCK_SIZE_K."""
    constants = constants_without_rates(gpu)
    size_a, size_b = element_bytes(problem)
    block_m, block_n, block_k = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K
    waves_per_simd = resident * config.num_warps / gpu.simds_per_unit
    fill = 1 if gpu.has.of_warpgroups else _WAVES_TO_FILL
    # A single wave overlaps part of its own loads; with less than one wave per SIMD, some SIMDs are idle.
    busy = min(1.0, 0.5 + 0.5 * waves_per_simd / fill) if waves_per_simd >= 1 else waves_per_simd
    cost = traits_of(config).cost
    edge_m, edge_n = cost.edges
    flops = 2 * max(block_m, edge_m) * max(block_n, edge_n) * block_k
    unit_tflops = peak_tflops(problem, gpu) / gpu.compute_units
    if cost.vector:
        unit_tflops = _VECTOR_FLOPS_PER_CLOCK * gpu.clock_mhz * 1e-6
    matrix_us = resident * flops / (unit_tflops * constants.matrix_efficiency * busy) * 1e-6
    if promotes_products(problem, gpu.arch) and not cost.vector:
        added_us = resident * block_m * block_n / (_VECTOR_FLOPS_PER_CLOCK / 2 * gpu.clock_mhz)
        # With buffers of their own, one group of warps adds while another multiplies.
        hidden = traits_of(config).in_ring and config.num_warps > gpu.has.matrix_warps
        matrix_us = max(matrix_us, added_us) if hidden else matrix_us + added_us

    # Warps tile the block as squarely as they can; each reads its rows of A and its columns of B.
    warps_n = 1 << (config.num_warps.bit_length() - 1) // 2
    warps_m = max(1, config.num_warps // warps_n)
    shared = (block_m * size_a * warps_n + block_n * size_b * warps_m) * block_k
    shared_us = resident * shared / (constants.shared_bytes_per_clock * gpu.clock_mhz)

    l2_bytes = constants.l2_bytes_per_clock
    lane_a, lane_b = lane_bytes(problem, config)
    load_a = load_clocks(min(block_m, problem.M) * block_k * size_a, lane_a, l2_bytes, gpu)
    load_b = load_clocks(min(block_n, problem.N) * block_k * size_b, lane_b, l2_bytes, gpu)
    # A spilled register is written and read back once per step, by every thread.
    spilled = 2 * (resources.scratch_bytes or 0) * config.num_warps * gpu.warp_size
    l2_us = resident * (load_a + load_b + spilled / l2_bytes) / gpu.clock_mhz

    # One workgroup's chain: a load travels, its bytes arrive, they are multiplied. If the loop is pipelined, num_stages
    # - 1 chains overlap.
    latency_us = constants.latency_us
    chain_us = latency_us + (l2_us + max(matrix_us, shared_us)) / resident
    chains = config.num_stages - 1 if is_pipelined(problem, config, gpu) else _UNPIPELINED
    step_us = max(matrix_us, shared_us, l2_us, chain_us / chains)
    # Filling the pipeline and storing the tile cost a latency each; other workgroups hide all but the last.
    return steps * step_us + 2 * latency_us / resident


def _traffic_us(problem: GemmProblem, config: Config, gpu: Gpu, tiles_m: int, tiles_n: int, per_unit: int) -> float:
    """Return the time of the device-memory traffic, including re-reads of A and B that miss the last-level cache.

    Tiles that run together cover GROUP_SIZE_M rows of tiles by as many columns as there is room for, and read each row
    and each column once. The part of A and B that exceeds the cache is read again for each such set.
    """
    if groups_of(problem) is not None:
        # The weight of a group is read by few tiles, which run side by side.
        return bytes_moved(problem) / (gpu.memory_tb_per_s * constants_without_rates(gpu).memory_efficiency) * 1e-6
    size_a, size_b = element_bytes(problem)
    together = min(tiles_m * tiles_n, gpu.compute_units * per_unit)
    rows = min(config.GROUP_SIZE_M, tiles_m)
    columns = min(tiles_n, _ceil(together, rows))
    rows = min(tiles_m, max(rows, _ceil(together, columns)))
    sets = _ceil(tiles_m, rows) * _ceil(tiles_n, columns)
    per_set = min(rows * config.BLOCK_SIZE_M, problem.M) * problem.K * size_a
    per_set += min(columns * config.BLOCK_SIZE_N, problem.N) * problem.K * size_b
    inputs = (problem.M * size_a + problem.N * size_b) * problem.K
    missed = max(0.0, 1.0 - gpu.last_level_cache_mib * 2**20 / inputs)
    moved = bytes_moved(problem) + missed * problem.batch * max(0, sets * per_set - inputs)
    return moved / (gpu.memory_tb_per_s * constants_without_rates(gpu).memory_efficiency) * 1e-6


def _ceil(value: int, step: int) -> int:
    return -(-value // step)


def peak_tflops(problem: GemmProblem, gpu: Gpu) -> float:
    """Return the dense peak of the type in which tl.dot multiplies.

    That is the wider one of A's and B's types, or fp16 if the GPU has no peak for that type, such as fp8.
    """
    dtype_a, dtype_b = DTYPES[problem.dtype_a], DTYPES[problem.dtype_b]
    dtype = dtype_a if dtype_a.size_bytes >= dtype_b.size_bytes else dtype_b
    return gpu.peak_tflops.get(dtype.peak) or gpu.peak_tflops["fp16"]
