"""Features: the inputs of the model of times, as numbers, for the configs of one size.

They are the parameters of a config (without AMD's own and without parameters that declare no values), the problem, and
what follows from both on a GPU: tiles, waves, overhang, steps, bytes, and the cost model's time
(`genkern.search.cost_model.predict`) relative to the roofline. Most sizes and times are logarithms to base 2, so that
the model generalises to sizes that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import CORE, PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES, traits_of
from genkern.kernels.contract.argument import alignment_of
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import bytes_moved, columns_of_b, element_bytes, get_op, groups_of, operands_of
from genkern.search.cost_model.constants import constants_for, shipped_constants, using_constants
from genkern.search.cost_model.loads import is_pipelined, lane_bytes
from genkern.search.cost_model.predict import peak_tflops, predicted_us
from genkern.search.cost_model.splits import realigning_us, splitting_us

Numbers = npt.NDArray[np.float64]
# An alignment of rows above this counts as this: a line of L2.
_LINE_BYTES = 128
_CORE = tuple(parameter.name for parameter in CORE)
# Bytes per clock that an SM gets from L2, as in the cost model for NVIDIA GPUs (H200).
_L2_BYTES_PER_CLOCK = 48
# Upper limits of the features `waves` and `resident` (programs on an SM at a time): beyond them times hardly change.
_MOST_WAVES, _MOST_RESIDENT = 64.0, 8.0


def physics_us(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> Numbers:
    """Return the cost model's microseconds [configs], without knowledge of binaries."""
    return np.array(predicted_us(problem, configs, gpu), dtype=np.float64)


def roofline_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Return the microseconds that no kernel can beat: all operations at the peak, or each byte moved once."""
    return max(operations(problem) / peak_tflops(problem, gpu), bytes_moved(problem) / gpu.memory_tb_per_s) * 1e-6


def operations(problem: GemmProblem) -> float:
    """Return the number of multiplications and additions."""
    return 2.0 * problem.M * problem.N * problem.K * problem.batch * columns_of_b(problem)


def features_of(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, shipped: bool = True) -> dict[str, Numbers]:
    """Return arrays [configs] by feature name, for at least one config. All families have the same features.

    "log_physics" is the cost model's time in octaves above the roofline. With `shipped`, the cost model uses its
    shipped constants, with which models are trained; otherwise the constants that were fitted on this GPU, if any.
    """
    with using_constants(shipped_constants(gpu) if shipped else constants_for(gpu)):
        columns = {**_parameters(configs), **_together(problem, configs, gpu), **_beside(problem, configs, gpu)}
    alike = features_of_problem(problem, gpu)
    return {**columns, **{name: np.full(len(configs), value) for name, value in alike.items()}}


def _parameters(configs: Sequence[Config]) -> dict[str, Numbers]:
    columns = {name: _values(configs, name) for name in _CORE}
    # Thousands of configs have few combinations of the other parameters.
    kinds: dict[object, int] = {}
    places = np.array([kinds.setdefault((config.family, config.others), len(kinds)) for config in configs], dtype=int)
    families = tuple(FAMILIES)
    seen = [_of_kind(*kind, families) for kind in kinds]  # type: ignore[misc]
    for name in seen[0] if seen else ():
        columns[name] = np.array([each[name] for each in seen])[places]
    return columns


@lru_cache(maxsize=4096)
def _of_kind(family: str, others: tuple[tuple[str, int | str], ...], families: tuple[str, ...]) -> dict[str, float]:
    """Return the features of a family with its own parameters, and of its form.

    `families` are the names of all families, each of which has a feature.
    """
    config = Config(family, 64, 64, 64, others=others)
    traits = traits_of(config)
    seen = {f"family={name}": float(name == family) for name in families}
    for parameter in PARAMETERS.all:
        if parameter.name not in _CORE and parameter.vendor != "amd" and parameter.values:
            seen |= parameter.features(getattr(config, parameter.name))
    tile_wave = traits.cost.tile_wave
    return {
        **seen,
        "cluster_m": float(traits.cluster[0]),
        "cluster_n": float(traits.cluster[1]),
        "in_ring": float(traits.in_ring),
        "uses_tma": float(traits.uses_tma),
        "persistent": float(tile_wave is not None),
        "kernels_before": float(traits.kernels_before),
        "vector": float(traits.cost.vector),
        "programs_of_tile": float(tile_wave.programs_of_tile if tile_wave else 1),
        "full_rows": float(tile_wave.full_rows if tile_wave else 0),
        **{f"reduces={each}": float(traits.cost.reduces == each) for each in ("kernel", "semaphore", "shares")},
    }


def _values(configs: Sequence[Config], name: str) -> Numbers:
    return np.array([getattr(config, name) for config in configs], dtype=np.float64)


def _together(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> dict[str, Numbers]:
    """Return the features of the product itself: tiles, waves, overhang, steps and bytes."""

    bm, bn, bk, group, sk, warps, stages = (np.maximum(_values(configs, name), 1) for name in _CORE)
    forms = [traits_of(config) for config in configs]
    ck = np.array([traits.cluster_k for traits in forms], dtype=np.float64)
    cluster = np.array([traits.cluster[0] * traits.cluster[1] for traits in forms], dtype=np.float64)
    swapped = np.array([traits.swapped for traits in forms], dtype=np.float64)
    size_a, size_b = element_bytes(problem)
    groups = groups_of(problem)
    rows = problem.M if groups is None else max(1, problem.M // max(1, groups.count))
    copies = problem.batch * columns_of_b(problem) * (1 if groups is None else max(1, groups.count))
    tiles_m, tiles_n = np.ceil(rows / bm), np.ceil(problem.N / bn)
    tiles = tiles_m * tiles_n * copies
    programs = tiles * sk * ck
    waves = programs / gpu.compute_units
    steps = np.ceil(problem.K / (bk * sk * ck))
    tile_bytes = (bm * size_a + bn * size_b) * bk
    shared = tile_bytes * stages
    loaded = tiles * (bm * size_a + bn * size_b) * problem.K
    physics = physics_us(problem, configs, gpu)
    roofline = roofline_us(problem, gpu)
    resident = np.clip(np.floor(gpu.shared_bytes_per_unit / np.maximum(shared, 1)), 1, _MOST_RESIDENT)
    return {
        "log_bm": np.log2(bm),
        "log_bn": np.log2(bn),
        "log_bk": np.log2(bk),
        "log_sk": np.log2(sk * ck),
        "tile": np.log2(bm * bn),
        "skew": np.log2(bm / bn),
        "long_side": np.log2(np.where(swapped > 0, bn, bm)),
        "short_side": np.log2(np.where(swapped > 0, bm, bn)),
        "intensity": np.log2(bm * bn / (bm * size_a + bn * size_b)),
        "accumulators": np.log2(bm * bn / (warps * gpu.warp_size)),
        "log_tiles_m": np.log2(tiles_m),
        "log_tiles_n": np.log2(tiles_n),
        "log_programs": np.log2(programs),
        "waves": np.minimum(waves, _MOST_WAVES),
        "wave_fill": waves / np.ceil(waves),
        "clusters_fill": (programs / cluster) / np.maximum(gpu.compute_units // np.maximum(cluster, 1), 1),
        "over_m": tiles_m * bm / rows,
        "over_n": tiles_n * bn / problem.N,
        "over_k": steps * bk * sk * ck / problem.K,
        "log_steps": np.log2(steps),
        "log_chain": np.log2(steps * np.ceil(waves)),
        "depth": np.log2(stages * bk),
        "log_shared": np.log2(shared),
        "resident": resident,
        "fits_twice": gpu.shared_bytes_per_unit / np.maximum(shared, 1),
        "in_flight": np.log2(np.minimum(programs, gpu.compute_units * resident) * shared),
        "log_loaded": np.log2(loaded / (gpu.compute_units * _L2_BYTES_PER_CLOCK * gpu.clock_mhz) / roofline),
        "group_share": group / tiles_m,
        "log_physics": np.log2(physics / roofline),
    }


def _beside(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> dict[str, Numbers]:
    """Return the other features: copies of operands, partial sums of a split K, widths of loads, and masks."""
    # 0 on GPUs with rates: both functions belong to the cost model of GPUs without rates.
    realigning, splitting = (realigning_us, splitting_us) if gpu.rates is None else (_nothing_us, _nothing_us)
    copied: dict[object, tuple[float, ...]] = {}
    split: dict[object, float] = {}
    rows = []
    for config in configs:
        kind = config.family, config.others, config.num_stages > 1
        if kind not in copied:
            lanes = lane_bytes(problem, config)
            copied[kind] = realigning(problem, config, gpu), *lanes, float(is_pipelined(problem, config, gpu))
        # GROUP_SIZE_M does not change the time of partial sums.
        sums = kind, config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.SPLIT_K
        if sums not in split:
            split[sums] = splitting(problem, config, gpu)
        rows.append((*copied[kind], split[sums]))
    copies_us, lane_a, lane_b, pipelined, splits_us = np.array(rows, dtype=np.float64).T
    roofline = roofline_us(problem, gpu)
    bm, bn, bk, sk = (_values(configs, name) for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "SPLIT_K"))
    size_a, size_b = element_bytes(problem)
    along_a = np.minimum(bk, problem.K) if problem.row_major_a else np.minimum(bm, problem.M)
    along_b = np.minimum(bn, problem.N) if problem.row_major_b else np.minimum(bk, problem.K)
    return {
        "log_copies": np.log2(1.0 + copies_us / roofline),
        "log_splits": np.log2(1.0 + splits_us / roofline),
        "lane_a": np.log2(lane_a),
        "lane_b": np.log2(lane_b),
        "pipelined": pipelined,
        # Contiguous bytes that a step of a tile loads from each row or column.
        "run_a": np.log2(along_a * size_a),
        "run_b": np.log2(along_b * size_b),
        "masks_m": (problem.M % bm > 0).astype(np.float64),
        "masks_n": (problem.N % bn > 0).astype(np.float64),
        "masks_k": (problem.K % (bk * np.maximum(sk, 1)) > 0).astype(np.float64),
    }


def _nothing_us(problem: GemmProblem, config: Config, gpu: Gpu) -> float:
    return 0.0


def features_of_problem(problem: GemmProblem, gpu: Gpu) -> dict[str, float]:
    """Return the features of the problem, by name; they are equal for all configs."""
    size_a, size_b = element_bytes(problem)
    moved = bytes_moved(problem) / gpu.memory_tb_per_s * 1e-6
    computed = operations(problem) / peak_tflops(problem, gpu) * 1e-6
    groups = groups_of(problem)
    a, b, *_ = operands_of(problem)
    op = get_op(problem.op)

    def pitch(operand_columns: int, size: float) -> float:
        return float(min(_LINE_BYTES, alignment_of(operand_columns) * size))

    return {
        "log_m": float(np.log2(problem.M)),
        "log_n": float(np.log2(problem.N)),
        "log_k": float(np.log2(problem.K)),
        "col_a": float(not problem.row_major_a),
        "row_b": float(problem.row_major_b),
        "size_a": size_a,
        "size_b": size_b,
        "size_c": float(DTYPES[problem.dtype_c].size_bytes),
        "pitch_a": float(np.log2(pitch(a.storage_shape[-1], DTYPES[a.dtype].size_bytes))),
        "pitch_b": float(np.log2(pitch(b.storage_shape[-1], DTYPES[b.dtype].size_bytes))),
        "pitch_c": float(np.log2(pitch(problem.N, DTYPES[problem.dtype_c].size_bytes))),
        "bias": float(problem.bias),
        "activation": float(problem.activation != "none"),
        "operands": float(len(operands_of(problem))),
        "step_operands": float(len(op.step_operands(problem))),
        "scale_k": float(np.log2(op.shared_scale(problem)[2])),
        "promotes": float(promotes_products(problem, gpu.arch)),
        "groups": float(0 if groups is None else groups.count),
        "batch": float(problem.batch),
        "log_roofline": float(np.log2(max(moved, computed))),
        "bound": float(np.log2(computed / moved)),
    }
