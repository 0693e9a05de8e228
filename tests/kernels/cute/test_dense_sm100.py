"""Tests of genkern.kernels.cute.dense_sm100: what the families for tcgen05 take, and their plans."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from forms import CUTE_FORMS, FORMS, PLACES, made

from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.argument import Leading, Map, Pointer
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute import tile_sm100 as tile
from genkern.kernels.cute.dense_sm100 import LIMITS, Shape, tensor_memory_limit
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.legality import legal
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.kernels.specs import kernel_specs, launch_plan, main_variant
from genkern.ops.op import get_op

B200 = gpu_for_arch("sm_100")
PLAIN = GemmProblem(4096, 6144, 4096)
FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}
ONE = Config("cute_tcgen05", 128, 128, 64, 8, 1, 4, 6)
TWO = Config("cute_tcgen05", 256, 192, 64, 8, 1, 4, 6, ctas=2, cluster="2x1")


def problem(m: int = 4096, n: int = 6144, k: int = 4096, **fields: object) -> GemmProblem:
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


def spec_of(of: GemmProblem, config: Config) -> KernelSpec:
    (spec,) = kernel_specs(of, config, get_op(of.op), {main_variant(of, config).name: "0"}, "sm_100")
    return spec


def launch_of(of: GemmProblem, config: Config) -> PlannedLaunch:
    (launch,) = launch_plan(product_of(of, get_op(of.op), "sm_100"), config, B200).launches
    return launch


STEMS = [stem for stem in CUTE_FORMS if PLACES[stem][0] == "cute_tcgen05"]


def test_forms_of_two_programs_need_an_even_cluster() -> None:
    """By use_2cta_instrs, cluster_shape_mn and use_tma_store: two programs a tile in an even number along M only."""
    assert len(STEMS) == 2 * (6 + 5)
    assert {"cute_tcgen05", "cute_tcgen05_1x4_direct", "cute_tcgen05_2cta_4x2"} < set(STEMS)
    for stem in STEMS:
        tile_wave = FORMS[stem].cost.tile_wave
        assert tile_wave is not None
        assert tile_wave.programs_of_tile == dict(PLACES[stem][1]).get("ctas", 1)
        assert tile_wave.tiles_m * tile_wave.tiles_n * tile_wave.programs_of_tile == tile_wave.programs <= 8


@pytest.mark.parametrize(("ctas", "cluster"), [(1, "4x2"), (1, "2x4"), (2, "1x1"), (2, "1x2"), (2, "1x4")])
def test_clusters_that_there_are_not(ctas: int, cluster: str) -> None:
    """The reason says which there are."""
    said = legal(PLAIN, replace(ONE, ctas=ctas, cluster=cluster), B200)
    assert f"with {ctas} program{'s' * (ctas > 1)} per tile, cluster must be one of " in said
    assert f"one of {cluster}" not in said


# Problem, config, why not ("" where it can).
CASES = [
    (PLAIN, ONE, ""),
    (PLAIN, TWO, ""),
    (PLAIN, replace(ONE, BLOCK_SIZE_M=256), "BLOCK_SIZE_M: 256 is not from 64 to 128"),
    (PLAIN, replace(TWO, BLOCK_SIZE_M=64), "BLOCK_SIZE_M: 64 is not from 128 to 256"),
    (PLAIN, replace(ONE, BLOCK_SIZE_N=144), "144 is not a multiple of 32 up to 256"),
    (PLAIN, replace(TWO, BLOCK_SIZE_M=128, BLOCK_SIZE_N=96), "a multiple of 64 columns"),
    (PLAIN, replace(TWO, BLOCK_SIZE_N=96), ""),
    (PLAIN, replace(ONE, BLOCK_SIZE_K=128, num_stages=2), "BLOCK_SIZE_K must be 128 bytes"),
    (PLAIN, replace(ONE, num_warps=8), "num_warps must be 4"),
    (PLAIN, replace(ONE, num_stages=7), "take more than the 232,448 bytes of shared memory"),
    (PLAIN, replace(TWO, num_stages=8), "take more than the 232,448 bytes of shared memory"),
    (PLAIN, replace(ONE, num_stages=1), "a ring needs a stage"),
    (PLAIN, replace(ONE, SPLIT_K=2), "does not split K"),
    (problem(dtype_b="fp16"), ONE, "operands of one type"),
    (problem(op="a8w8", dtype_a="int8", dtype_b="int8"), ONE, "multiplies bf16, fp16 or fp8"),
    (problem(dtype_c="fp32"), replace(ONE, num_stages=5), ""),
    (problem(n=513), ONE, "rows of C do not start at multiples of 16 bytes"),
    (problem(n=513), replace(ONE, store="direct"), ""),
    (problem(k=1001), ONE, "rows of A do not start at multiples of 16 bytes"),
    # All four layouts, by squares of 128 bytes: 64 rows or columns of 16 bits, 128 of 8.
    (problem(row_major_a=False, row_major_b=True), ONE, ""),
    (problem(row_major_b=True), replace(ONE, BLOCK_SIZE_N=96), "copies 64 rows or columns at a time"),
    (problem(row_major_b=True), TWO, "copies 64 rows or columns at a time"),
    (problem(row_major_b=True), replace(TWO, BLOCK_SIZE_N=256), ""),
    (problem(**FP8), replace(ONE, BLOCK_SIZE_K=128), ""),
    (problem(**FP8, row_major_a=False), replace(ONE, BLOCK_SIZE_K=128), ""),
    (problem(**FP8, row_major_a=False), replace(ONE, BLOCK_SIZE_M=64, BLOCK_SIZE_K=128), "copies 128 rows"),
    (problem(op="a8w8_blockscale", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn"), ONE, "nothing but A and B"),
]


@pytest.mark.parametrize(("of", "config", "why"), CASES, ids=range(len(CASES)))
def test_legality(of: GemmProblem, config: Config, why: str) -> None:
    """Every bound is said in one line, and next to it is what can be."""
    said = legal(of, config, B200)
    assert why in said
    assert bool(why) == bool(said)


def test_other_architectures_are_refused() -> None:
    """tcgen05 is Blackwell's, and of the data center's."""
    for arch in ("sm_90", "sm_120"):
        assert f"tcgen05, which {arch} does not have" in legal(PLAIN, ONE, gpu_for_arch(arch))


def test_tensor_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two accumulators of every tile that there is fit; three of 256 columns would not."""
    assert tensor_memory_limit in LIMITS
    widest = replace(ONE, BLOCK_SIZE_N=256)
    shape = Shape(1, 1, 1, True)
    table = ConfigTable.of(widest)
    assert not any(mask for mask, _ in tensor_memory_limit(shape, PLAIN, table, B200))
    monkeypatch.setattr(tile, "ACCUMULATORS", 3)
    ((mask, reason),) = tensor_memory_limit(shape, PLAIN, table, B200)
    assert mask
    assert "512 columns" in reason


def test_limits_say_where_they_come_from() -> None:
    """Each is a rule with a name and a source."""
    for limit in LIMITS:
        assert any(source in (limit.__doc__ or "") for source in ("PTX ISA", "CUDA programming guide", "squares")), (
            limit
        )


def fits(of: GemmProblem, config: Config, shared_bytes: int) -> bool:
    """Whether the ring's stages do, on a GPU whose programs have so much shared memory."""
    stages = traits_of(config).stages
    assert stages is not None
    gpu = replace(B200, shared_bytes_per_block=shared_bytes)
    return not any(mask for mask, _ in stages(of, ConfigTable.of(config), gpu))


def test_what_a_kernel_takes_is_said_once() -> None:
    """What legality bounds is what the kernel is compiled with and launched with, for every form and tile."""
    of = (PLAIN, problem(dtype_c="fp32"), problem(row_major_a=False, row_major_b=True))
    seen = 0
    for stem, block_m, block_n, stages in itertools.product(STEMS, (64, 128, 256), range(32, 257, 32), (2, 4, 7)):
        config = made(stem, block_m, block_n, 64, 1, 1, 4, stages)
        for each in of:
            if legal(each, config, B200):
                continue
            constants, ctas = dict(spec_of(each, config).constants), config.ctas
            assert int(constants["shared_bytes"]) <= WARPGROUP_SHARED_BYTES
            assert constants["shared_bytes"] >= tile.ALONE_BYTES
            assert constants["columns"] == tile.columns_of(block_m, block_n, ctas) <= tile.MEMORY_COLUMNS
            part = int(constants["part"]) * FORMS[stem].stores_tma
            size = 4 if each.dtype_c == "fp32" else 2
            buffers, used = tile.buffers_and_bytes(block_m, block_n, ctas, stages, part, size)
            assert constants["buffers"] == buffers
            taken = int(constants["shared_bytes"])
            assert [fits(each, config, taken - less) for less in (0, 1)] == [True, False]
            assert used + int(constants["spare_bytes"]) == constants["shared_bytes"]
            seen += 1
    assert seen > 500


def test_one_binary_for_every_size() -> None:
    """Sizes and GROUP_SIZE_M are run-time arguments, of any alignment."""
    other = problem(5000, 3016, 1992)
    assert spec_of(PLAIN, TWO) == spec_of(other, replace(TWO, GROUP_SIZE_M=3))
    assert spec_of(PLAIN, TWO) != spec_of(PLAIN, replace(TWO, num_stages=4))


def test_each_of_two_programs_loads_half_of_a_tile() -> None:
    """Each program loads its half of the tile's rows of A and of its columns of B, and each warp stores 32 rows."""
    launch = launch_of(problem(bias=True), TWO)
    a, b, c, bias, *sizes = [each for each in launch.arguments if type(each).__name__ != "Constant"]
    assert a == Map("a_desc", "a", (128, 64), False, 3)
    assert b == Map("b_desc", "b", (96, 64), True, 3)
    assert c == Map("c_desc", "c", (32, 64), False, 3)
    assert bias == Pointer("bias_ptr", "bias")
    assert [each.name for each in sizes] == ["M", "N", "K", "GROUP_SIZE_M"]
    assert launch.cluster == 2
    # 74 pairs at a time of 16 x 32 tiles; one pair where there is one tile.
    assert launch.programs({"units": 148}) == (74, 1, 1)
    assert launch_of(problem(200, 168), TWO).programs({"units": 148}) == (1, 1, 1)
    assert launch.symbol == "matmul_cute_tcgen05_2cta_2x1_p64_BM256_BN192_BK64_nW4_nS6_0"


def test_the_plan_of_other_layouts_and_stores() -> None:
    """Operands that do not run along K come in squares; C from registers needs its address and pitch."""
    fields = {"row_major_a": False, "row_major_b": True}
    config = Config("cute_tcgen05", 256, 256, 128, 4, 1, 4, 4, ctas=2, cluster="2x2", store="direct")
    a, b, c, *_, pitch = [
        each for each in launch_of(problem(**FP8, **fields), config).arguments if type(each).__name__ != "Constant"
    ]
    assert (a, b) == (Map("a_desc", "a", (128, 128), True, 3), Map("b_desc", "b", (128, 128), False, 3))
    assert c == Pointer("c_ptr", "c")
    assert pitch == Leading("ldc", "c")
    # Rows of 64 bytes where those of 128 do not divide the tile, and 16 of them where a program has 64 rows.
    narrow = Config("cute_tcgen05", 64, 96, 64, 1, 1, 4, 4)
    assert launch_of(PLAIN, narrow).arguments[2] == Map("c_desc", "c", (16, 32), False, 2)


def test_plans_are_data() -> None:
    """They go through JSON, for any M."""
    product = product_of(PLAIN, get_op("a16w16"), "sm_100")
    plan = launch_plan(product, replace(TWO, cluster="4x1"), B200, any_m=True)
    assert LaunchPlan.from_json(plan.to_json()) == plan
    # 32 clusters of four at a time.
    assert plan.launches[0].programs({"units": 148, "M": 4096}) == (32, 1, 1)
