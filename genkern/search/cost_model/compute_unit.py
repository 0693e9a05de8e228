"""What a compute unit does in one step along K of a tile, and how many workgroups it runs at a time."""

from __future__ import annotations

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import Gpu, Rates
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import columns_of_b, element_bytes, has_exponents, operands_of
from genkern.search.cost_model.columns import Columns, Numbers
from genkern.search.cost_model.loads import is_pipelined, lane_bytes

# Registers per thread in addition to accumulators and operands: addresses, masks, counters.
_OTHER_REGISTERS = 40
# Multiplications and additions of a CU without matrix instructions: packed ones on four SIMDs (CDNA 3), or dual-issued.
_VECTOR_FLOPS_PER_CLOCK = 256
# Rows of the usual instruction. The instruction for four rows computes sixteen products at a time at half the usual
# rate (v_mfma_f32_4x4x4_16b: 8 cycles). It exists for 16-bit types, and is used if a tile has columns for all sixteen.
_ROWS, _FEW_ROWS, _FEW_ROWS_RATE, _FEW_ROWS_COLUMNS = 16, 4, 0.5, 64
# Stands for any config of a problem, since on GPUs with rates all families load A and B in the same way.
_ANY = Config("tiled", 16, 16, 16, num_stages=2)


def tile_bytes(problem: GemmProblem, columns: Columns) -> Numbers:
    """Return the bytes [configs] of A and B in a step, including padding, as LDS holds them."""
    size_a, size_b = element_bytes(problem)
    return (columns["BLOCK_SIZE_M"] * size_a + columns["BLOCK_SIZE_N"] * size_b) * columns["BLOCK_SIZE_K"]


def depth(problem: GemmProblem, gpu: Gpu, columns: Columns) -> Numbers:
    """Return the number of later steps [configs] whose loads are under way during a step; 0 if it is not pipelined."""
    return np.where(is_pipelined(problem, _ANY, gpu), columns["num_stages"] - 1, 0.0)


def matrix_clocks(problem: GemmProblem, gpu: Gpu, rates: Rates, columns: Columns, peak_tflops: float) -> Numbers:
    """Return the clocks [configs] in which all SIMDs multiply one step of a tile and apply its scales.

    `peak_tflops` is the GPU's. Rows and columns are padded to the instruction's. Warps beyond the number of a tile's
    instructions repeat the work of others.
    """
    block_m, block_n, block_k = (columns[f"BLOCK_SIZE_{side}"] for side in "MNK")
    takes_exponents = has_exponents(problem) and gpu.has.dot_scaled
    if takes_exponents and max(element_bytes(problem)) < 1:
        peak_tflops *= rates.packed_matrix_ratio
    elif has_exponents(problem) and not takes_exponents:
        # Both operands are converted to bf16.
        peak_tflops = gpu.peak_tflops.get("bf16", peak_tflops)
    per_clock = peak_tflops / gpu.compute_units / gpu.clock_mhz * 1e6 * rates.matrix_share
    asked = columns["matrix_instr_nonkdim"]
    lone = (asked == 0) & (block_m < _ROWS)
    has_few = gpu.warp_size == 64 and DTYPES[problem.dtype_a].size_bytes == 2
    few = lone & (block_n >= _FEW_ROWS_COLUMNS) & has_few
    vector = (columns["vector"] > 0) | (lone & ~few)
    edge = np.maximum(asked, _ROWS)
    rows = np.maximum(block_m, np.maximum(edge, columns["edge_m"]))
    rows = np.where(few, _FEW_ROWS * np.ceil(block_m / _FEW_ROWS), rows)
    width = np.maximum(block_n, np.maximum(edge, columns["edge_n"]))
    instructions = rows * width / (np.where(few, _ROWS, edge) * edge)
    repeats = np.maximum(1, columns["num_warps"] / np.maximum(1, instructions))
    clocks = 2 * rows * width * block_k * repeats / (per_clock * np.where(few, _FEW_ROWS_RATE, 1.0))
    by_vector = 2 * block_m * block_n * block_k / _VECTOR_FLOPS_PER_CLOCK
    clocks = np.where(vector, by_vector, clocks)
    if not takes_exponents and any(each.role == "scale" and each.in_step for each in operands_of(problem)):
        # Per sum and step: multiply the scales, and add the product.
        clocks = clocks + 4 * block_m * block_n / _VECTOR_FLOPS_PER_CLOCK
    return clocks * columns_of_b(problem)


def lds_clocks(problem: GemmProblem, rates: Rates, columns: Columns) -> Numbers:
    """Return the clocks [configs] in which a step is written to LDS, and read by warps that tile the block squarely."""
    size_a, size_b = element_bytes(problem)
    warps_n = 2.0 ** (np.floor(np.log2(columns["num_warps"])) // 2)
    warps_m = np.maximum(1, columns["num_warps"] / warps_n)
    read = columns["BLOCK_SIZE_M"] * size_a * warps_n + columns["BLOCK_SIZE_N"] * size_b * warps_m
    return (read * columns["BLOCK_SIZE_K"] + tile_bytes(problem, columns)) / rates.lds_bytes_per_clock


def loaded_bytes(problem: GemmProblem, columns: Columns) -> tuple[Numbers, Numbers]:
    """Return the bytes [configs] of A, and of B, that a step requests; rows beyond the matrix are masked."""
    size_a, size_b = element_bytes(problem)
    of_a = np.minimum(columns["BLOCK_SIZE_M"], problem.M) * columns["BLOCK_SIZE_K"] * size_a
    return of_a, np.minimum(columns["BLOCK_SIZE_N"], problem.N) * columns["BLOCK_SIZE_K"] * size_b


def load_clocks(problem: GemmProblem, gpu: Gpu, rates: Rates, columns: Columns, registers: Numbers) -> Numbers:
    """Return the clocks [configs] in which a step's bytes arrive from L2, and spilled registers are written and
    read."""
    arriving = zip(loaded_bytes(problem, columns), lane_bytes(problem, _ANY), strict=True)
    clocks: Numbers = sum(  # type: ignore[assignment]
        loaded / min(rates.load_bytes_per_clock, lane * gpu.has.lanes_per_clock) for loaded, lane in arriving
    )
    waves = columns["waves_per_eu"]
    of_wave = gpu.registers_per_unit // (gpu.simds_per_unit * gpu.warp_size)
    most = np.minimum(gpu.registers_per_thread_max, np.where(waves > 0, of_wave / np.maximum(waves, 1), np.inf))
    guessed = 4 * np.maximum(0, registers - most)
    spilled = np.where(columns["registers"] > 0, columns["scratch_bytes"], guessed)
    return clocks + 2 * spilled * columns["num_warps"] * gpu.warp_size / rates.load_bytes_per_clock


def registers_of(problem: GemmProblem, gpu: Gpu, columns: Columns) -> Numbers:
    """Return the registers per thread [configs], including AGPRs: the binary's, or an estimate.

    The estimate is the accumulators, one step on its way to LDS if loads go through registers, and half of a step that
    is read from LDS.
    """
    threads = columns["num_warps"] * gpu.warp_size
    sums = columns["BLOCK_SIZE_M"] * columns["BLOCK_SIZE_N"] * columns_of_b(problem) / threads
    step = tile_bytes(problem, columns) / 4 / threads
    on_its_way = 0.0 if gpu.has.async_copies else depth(problem, gpu, columns) > 0
    estimate = sums + step * (on_its_way + 0.5) + _OTHER_REGISTERS
    return np.where(columns["registers"] > 0, columns["registers"], estimate)


def resident(problem: GemmProblem, gpu: Gpu, columns: Columns, registers: Numbers) -> Numbers:
    """Return the number of workgroups [configs] that a CU runs at a time; 0 if a binary needs more than the CU has."""
    stages, warps, has_binary = columns["num_stages"], columns["num_warps"], columns["registers"] > 0
    held = tile_bytes(problem, columns) * np.where(stages <= 1, 0.5, stages - 1)
    # A loop that Triton does not pipeline keeps fewer tiles. The workgroups for which that leaves room are not counted,
    # since narrow loads fill the unit's queues (as in predict_loads).
    narrow = (stages > 1) & (depth(problem, gpu, columns) == 0)
    lds = np.where(has_binary, np.maximum(columns["shared_bytes"], np.where(narrow, held, 0)), held)
    by_lds = gpu.shared_bytes_per_unit // np.maximum(lds, 1)
    of_simd = gpu.registers_per_unit // (gpu.simds_per_unit * gpu.warp_size)
    slots = gpu.threads_per_unit_max // (gpu.warp_size * gpu.simds_per_unit)
    allotted = np.ceil(np.minimum(registers, gpu.registers_per_thread_max) / gpu.register_granule)
    waves = np.minimum(slots, of_simd // (allotted * gpu.register_granule)) * gpu.simds_per_unit
    found = np.minimum(np.minimum(by_lds, waves // warps), gpu.blocks_per_unit_max)
    over = columns["shared_bytes"] > gpu.shared_bytes_per_block
    refused = over | (has_binary & ((registers > gpu.registers_per_thread_max) | (waves < warps)))
    # Estimates are too rough to refuse a config.
    return np.where(refused, 0.0, np.maximum(found, 1))
