"""Tests of genkern.search.cost_model.compute_unit: what a CU does in a step, by its instructions and registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpu import Gpu, Rates
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model import compute_unit
from genkern.search.cost_model.columns import Numbers, columns_of
from genkern.search.cost_model.predict import peak_tflops

MI300X, MI355X, RX9070 = map(gpu_for_arch, ("gfx942", "gfx950", "gfx1201"))
PROBLEM = GemmProblem(64, 4096, 4096)


def rates_of(gpu: Gpu) -> Rates:
    """Those of one of AMD's."""
    assert gpu.rates is not None
    return gpu.rates


def clocks(problem: GemmProblem, gpu: Gpu, *configs: Config) -> Numbers:
    """Of the matrix instructions."""
    return compute_unit.matrix_clocks(problem, gpu, rates_of(gpu), columns_of(configs), peak_tflops(problem, gpu))


def test_rows_are_padded_to_the_instruction() -> None:
    """Of 4 rows as many clocks as of 16, of 16 half of 32 but where the instruction has 32."""
    four, sixteen, thirty_two, wide = clocks(
        PROBLEM,
        MI300X,
        Config("tiled", 4, 64, 64, num_warps=1, matrix_instr_nonkdim=16),
        Config("tiled", 16, 64, 64, num_warps=1, matrix_instr_nonkdim=16),
        Config("tiled", 32, 64, 64, num_warps=1, matrix_instr_nonkdim=16),
        Config("tiled", 16, 64, 64, num_warps=1, matrix_instr_nonkdim=32),
    )
    assert four == sixteen == thirty_two / 2
    assert wide == thirty_two


def test_left_to_itself_triton_takes_instructions_of_four_rows() -> None:
    """Of 16-bit types and 64 columns, at half of the usual rate: half of the clocks of 16 rows."""
    few, padded = (Config("tiled", 4, 64, 64, num_warps=1, matrix_instr_nonkdim=side) for side in (0, 16))
    assert clocks(PROBLEM, MI300X, few)[0] == clocks(PROBLEM, MI300X, padded)[0] / 2
    # RDNA has no such, and multiplies by vector instructions.
    assert clocks(PROBLEM, RX9070, few)[0] == 2 * 4 * 64 * 64 / 256


def test_the_stated_peak_is_reached_by_a_share() -> None:
    """2048 multiplications and additions of a CU in a clock for 16 bits on CDNA 3."""
    tile = clocks(PROBLEM, MI300X, Config("tiled", 128, 128, 64))[0]
    assert tile == pytest.approx(2 * 128 * 128 * 64 / (2048 * rates_of(MI300X).matrix_share))


def test_four_bits_have_twice_the_rate_of_eight_where_they_are_multiplied_as_they_are() -> None:
    """On CDNA 4; CDNA 3 makes bf16 of them."""
    packed = GemmProblem(64, 4096, 4096, "a4w4_blockscale", "int8", "int8")
    tile = Config("tiled", 128, 128, 256)
    once = 2 * 128 * 128 * 256
    assert clocks(packed, MI355X, tile)[0] == pytest.approx(once / (16384 * rates_of(MI355X).matrix_share))
    assert clocks(packed, MI300X, tile)[0] >= once / (2048 * rates_of(MI300X).matrix_share)


def test_warps_beyond_the_instructions_of_a_tile_repeat_them() -> None:
    """Eight warps on one instruction's tile are busy eight times as long together."""
    one, eight = (Config("tiled", 16, 16, 64, num_warps=warps, matrix_instr_nonkdim=16) for warps in (1, 8))
    assert clocks(PROBLEM, MI300X, eight)[0] == 8 * clocks(PROBLEM, MI300X, one)[0]


def test_registers_are_those_of_the_binary_where_there_is_one() -> None:
    """Else accumulators alone are no fewer than what a thread has of the tile."""
    tile = [Config("tiled", 128, 128, 64)]
    assert compute_unit.registers_of(PROBLEM, MI300X, columns_of(tile, [Resources(registers=90)]))[0] == 90
    assert compute_unit.registers_of(PROBLEM, MI300X, columns_of(tile))[0] > 128 * 128 / 256
    # Copies that go straight to LDS need none on their way.
    direct = replace(MI300X, has=replace(MI300X.has, async_copies=True))
    found = [compute_unit.registers_of(PROBLEM, gpu, columns_of(tile))[0] for gpu in (MI300X, direct)]
    assert found[0] > found[1]


def test_lds_and_registers_say_how_many_workgroups_run() -> None:
    """64 KiB of LDS hold two of 32, 512 registers of a lane two waves of 256; nothing launches that needs more."""

    def fit(gpu: Gpu = MI300X, **needs: int) -> float:
        resources = Resources(registers=needs.get("registers", 64), shared_bytes=needs.get("shared_bytes", 0))
        columns = columns_of([Config("tiled", 64, 64, 64, num_warps=4)], [resources])
        return float(compute_unit.resident(PROBLEM, gpu, columns, compute_unit.registers_of(PROBLEM, gpu, columns))[0])

    assert fit(shared_bytes=32768) == 2
    assert fit(MI355X, shared_bytes=32768) == 5
    assert fit(registers=256) == 2
    assert fit(shared_bytes=65536 + 4) == fit(registers=513) == 0


def test_spilled_registers_are_loaded_again() -> None:
    """What a binary says counts, and without one what does not fit the waves that waves_per_eu asks for."""
    tile = Config("tiled", 256, 128, 32, num_warps=4)

    def load(config: Config, resources: Resources | None = None) -> float:
        columns = columns_of([config], resources and [resources])
        registers = compute_unit.registers_of(PROBLEM, MI300X, columns)
        return float(compute_unit.load_clocks(PROBLEM, MI300X, rates_of(MI300X), columns, registers)[0])

    binary = Resources(registers=200, scratch_bytes=0)
    assert load(tile, replace(binary, scratch_bytes=64)) > load(tile, binary)
    assert load(tile.with_values(waves_per_eu=4)) > load(tile)
