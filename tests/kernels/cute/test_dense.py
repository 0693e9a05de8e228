"""Tests of genkern.kernels.cute.dense: what the families in CuTe DSL take, and their plans."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from forms import CUTE_FORMS, FORMS, PLACES, made
from long_tests import spread

from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES, sides, traits_of
from genkern.kernels.contract.argument import Constant, Leading, Map, Pointer
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.legality import legal
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.kernels.specs import kernel_specs, launch_plan, main_variant
from genkern.ops.op import get_op

H200 = gpu_for_arch("sm_90")
PLAIN = GemmProblem(4096, 6144, 4096)
FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}
BLOCKS = {"op": "a8w8_blockscale", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}
INT8 = {"dtype_a": "int8", "dtype_b": "int8"}
PING_PONG = Config("cute_wgmma", 128, 168, 64, 8, 1, 8, 5, schedule="ping_pong", cluster="2x1")
SWAPPED = Config("cute_wgmma", 224, 128, 64, 8, 1, 8, 4, swapped=1, cluster="2x1")

SPLIT = Config("cute_wgmma", 128, 96, 64, 1, 4, 8, 4, store="direct", cluster="1x4")
FULL = (("accumulate", "full"),)
PROMOTED = Config("cute_wgmma", 256, 128, 128, 8, 1, 8, 4, cluster="2x1")


def problem(m: int = 4096, n: int = 6144, k: int = 4096, **fields: object) -> GemmProblem:
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


def spec_of(of: GemmProblem, config: Config) -> KernelSpec:
    digests = dict.fromkeys((main_variant(of, config).name, "reduce_splits"), "0")
    spec, *_ = kernel_specs(of, config, get_op(of.op), digests, "sm_90")
    return spec


def launch_of(of: GemmProblem, config: Config) -> PlannedLaunch:
    (launch,) = launch_plan(product_of(of, get_op(of.op), "sm_90"), config, H200).launches
    return launch


STEMS = [stem for stem in CUTE_FORMS if PLACES[stem][0] == "cute_wgmma"]


def test_forms_of_the_family() -> None:
    """Two schedules, upright and swapped, eight clusters, two ways to store C; those that split K store themselves."""
    assert len(STEMS) == 64
    assert {"cute_cooperative", "cute_ping_pong_2x2", "cute_cooperative_4x2", "cute_ping_pong_1x2_direct"} < set(STEMS)
    assert {"cute_cooperative_swapped", "cute_ping_pong_swapped_2x4_direct"} < set(STEMS)
    assert {stem for stem in STEMS if FORMS[stem].swapped} == {stem for stem in STEMS if "swapped" in stem}
    splitting = [stem for stem in STEMS if FORMS[stem].splits_k]
    assert len(splitting) == 16
    assert all(stem.startswith("cute_cooperative") and stem.endswith("_direct") for stem in splitting)
    assert FAMILIES["cute_wgmma"].language == "cute"


# Problem, config, why not ("" where it can).
CASES = [
    (PLAIN, PING_PONG, ""),
    (PLAIN, replace(PING_PONG, num_stages=6), "take more than the 232,448 bytes of shared memory"),
    (PLAIN, replace(PING_PONG, BLOCK_SIZE_M=256), "BLOCK_SIZE_M: 256 is not from 64 to 128"),
    (PLAIN, replace(PING_PONG, BLOCK_SIZE_N=172), "172 is not a multiple of 8 up to 256"),
    (PLAIN, replace(PING_PONG, BLOCK_SIZE_K=128, num_stages=2), "BLOCK_SIZE_K must be 128 bytes"),
    (PLAIN, replace(PING_PONG, BLOCK_SIZE_N=208, num_stages=3), "more than 200 accumulators"),
    (PLAIN, replace(PING_PONG, num_warps=4), "num_warps must be 8"),
    (PLAIN, replace(PING_PONG, num_stages=1), "a ring needs a stage"),
    (PLAIN, replace(PING_PONG, SPLIT_K=2), "does not split K"),
    (PLAIN, replace(SPLIT, SPLIT_K=64), ""),
    (PLAIN, replace(SPLIT, SPLIT_K=65), "more splits than K-blocks"),
    (problem(**BLOCKS), replace(SPLIT, BLOCK_SIZE_K=128), "nothing but A and B"),
    (problem(op="batched_a16w16", own=(("batch_size", 3),)), SPLIT, "batch"),
    (problem(op="a8w8", dtype_a="int8", dtype_b="int8"), PING_PONG, "multiplies bf16, fp16 or fp8"),
    (problem(dtype_a="fp32", dtype_b="fp32", dtype_c="fp32"), PING_PONG, "stores C of 16 bits"),
    (problem(dtype_b="fp16"), PING_PONG, "operands of one type"),
    (problem(dtype_c="fp32"), PING_PONG, "stores C of 16 bits"),
    (problem(dtype_c="fp32"), replace(PING_PONG, store="direct"), ""),
    (problem(n=513), PING_PONG, "rows of C do not start at multiples of 16 bytes"),
    (problem(n=513), replace(PING_PONG, store="direct"), ""),
    (problem(k=1001), PING_PONG, "rows of A do not start at multiples of 16 bytes"),
    (problem(row_major_b=True), PING_PONG, ""),
    # Columns that do not run along K come 64 at a time, and take the room of as many.
    (PLAIN, replace(PING_PONG, BLOCK_SIZE_N=136, num_stages=6), ""),
    (problem(row_major_b=True), replace(PING_PONG, BLOCK_SIZE_N=136, num_stages=6), "take more than the 232,448 bytes"),
    (problem(row_major_b=True), replace(PING_PONG, BLOCK_SIZE_N=192, num_stages=4), ""),
    (problem(**FP8), replace(PING_PONG, BLOCK_SIZE_K=128), ""),
    (problem(**FP8, row_major_a=False), replace(PING_PONG, BLOCK_SIZE_K=128), "contiguous along K"),
    (problem(**BLOCKS), replace(PING_PONG, BLOCK_SIZE_K=128), "nothing but A and B"),
    (problem(**BLOCKS), PROMOTED, ""),
    # Products of 64 rows lie beside the sums of all.
    (problem(**BLOCKS), replace(PROMOTED, BLOCK_SIZE_N=136, num_stages=3), "more than 192 accumulators"),
    (problem(**BLOCKS), replace(PROMOTED, BLOCK_SIZE_M=128, BLOCK_SIZE_N=192), ""),
    (problem(**BLOCKS), replace(PROMOTED, BLOCK_SIZE_M=192, num_warps=12), "at most two warpgroups"),
    (problem(**BLOCKS), replace(PROMOTED, BLOCK_SIZE_M=128, BLOCK_SIZE_N=200), "more than 192 accumulators"),
    (problem(**BLOCKS, own=(("block_n", 64),)), PROMOTED, "or 1x128 and 128x128 blocks"),
    (problem(**BLOCKS | INT8), PROMOTED, "multiplies bf16, fp16 or fp8"),
    # Full sums of fp8 are promoted like those of blocks, in the same tiles.
    (problem(**FP8, own=FULL), PROMOTED, ""),
    (problem(**FP8, own=FULL), replace(PROMOTED, BLOCK_SIZE_N=136, num_stages=3), "more than 192 accumulators"),
    (problem(**FP8, own=FULL), replace(PROMOTED, BLOCK_SIZE_M=192, num_warps=12), "at most two warpgroups"),
    (problem(**FP8, own=FULL), replace(PING_PONG, BLOCK_SIZE_K=128), "cooperative, upright tiles of one product"),
    (problem(**FP8, own=FULL), replace(SWAPPED, BLOCK_SIZE_K=128), "cooperative, upright tiles of one product"),
    (problem(**FP8, own=FULL), replace(SPLIT, BLOCK_SIZE_K=128), "adds up in the tensor cores only"),
    (PLAIN, Config("cute_wgmma", 64, 256, 64, 8, 1, 4, 4), ""),
    (PLAIN, Config("cute_wgmma", 64, 256, 64, 8, 1, 8, 4), ""),
    (PLAIN, SWAPPED, ""),
    (PLAIN, replace(SWAPPED, num_stages=5), "take more than the 232,448 bytes of shared memory"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=8), ""),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=100), "100 is not a multiple of 8 up to 400"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=264), "at most 256 columns"),
    # Of 64 rows two groups may have columns each: whole boxes of them where their operand runs across K.
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=264, BLOCK_SIZE_N=64, num_warps=4), "num_warps must be 8"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=264, BLOCK_SIZE_N=64, num_stages=3), "at most 256 rows at a time"),
    (PLAIN, replace(SWAPPED, cluster="1x2", BLOCK_SIZE_M=264, BLOCK_SIZE_N=64), ""),
    (problem(row_major_a=False), replace(SWAPPED, BLOCK_SIZE_M=120, BLOCK_SIZE_N=64), "num_warps must be 4"),
    (problem(row_major_a=False), replace(SWAPPED, BLOCK_SIZE_M=136, BLOCK_SIZE_N=64), ""),
    # K-blocks of 32 need operands that both run across K.
    (problem(row_major_a=False, row_major_b=True), replace(SWAPPED, BLOCK_SIZE_K=32), ""),
    (problem(row_major_a=False), replace(SWAPPED, BLOCK_SIZE_K=32), "32 if no operand is contiguous along K"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_N=192), "num_warps must be 12"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=200, BLOCK_SIZE_N=192, num_warps=12), ""),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=208, BLOCK_SIZE_N=192, num_warps=12), "more than 100 accumulators"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_N=320, num_warps=12), "64 or 128 columns for each warpgroup"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_N=32), "32 is not a multiple of 64"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_N=64, num_warps=16), "num_warps must be 4"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=208, BLOCK_SIZE_N=256, num_stages=2), "more than 200 accumulators"),
    (PLAIN, replace(SWAPPED, BLOCK_SIZE_M=192, BLOCK_SIZE_N=256, num_stages=3), ""),
    (
        PLAIN,
        Config("cute_wgmma", 32, 256, 64, 8, 1, 8, 4, schedule="ping_pong", swapped=1),
        "64 or 128 columns for each warpgroup",
    ),
    (
        PLAIN,
        Config("cute_wgmma", 32, 192, 64, 8, 1, 12, 4, schedule="ping_pong", swapped=1),
        "64 or 128 columns for each warpgroup",
    ),
    (problem(row_major_a=False), SWAPPED, ""),
    (problem(row_major_a=False, row_major_b=True), replace(SWAPPED, BLOCK_SIZE_M=192), ""),
    (problem(n=513), SWAPPED, "rows of C do not start at multiples of 16 bytes"),
    (problem(m=513, n=513), replace(SWAPPED, store="direct"), ""),
    (problem(**FP8), replace(SWAPPED, BLOCK_SIZE_K=128), ""),
]


@pytest.mark.parametrize(("of", "config", "why"), CASES, ids=range(len(CASES)))
def test_legality(of: GemmProblem, config: Config, why: str) -> None:
    """Every bound is said in one line, and next to it is what can be."""
    said = legal(of, config, H200)
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.parametrize(
    ("of", "stem", "pairs"),
    [
        (problem(n=514), "cute_ping_pong_2x1_direct", True),
        (problem(n=513), "cute_ping_pong_2x1_direct", False),
        (problem(dtype_c="fp32"), "cute_ping_pong_2x1_direct", True),
        (problem(n=514), "cute_ping_pong_swapped_direct", False),
        (problem(n=514, op="batched_a16w16", own=(("batch_size", 3),)), "cute_ping_pong_2x1_direct", False),
        (PLAIN, "cute_ping_pong_2x1", False),
        (PLAIN, "cute_cooperative_2x1_direct", True),
        (problem(n=513), "cute_cooperative_2x1_direct", False),
    ],
)
def test_sums_go_out_in_pairs(of: GemmProblem, stem: str, pairs: bool) -> None:
    """From registers, where a thread has neighbours of a row, and every row begins with an even element.

    Parts of a split K have no leading dimension of C.
    """
    for split_k in (1, 2) if FORMS[stem].splits_k else (1,):
        config = made(stem, 128, 128, 64, 8, split_k, 8, 5)
        assert not legal(of, config, H200)
        arguments = launch_plan(product_of(of, get_op(of.op), "sm_90"), config, H200).launches[0].arguments
        assert (dict(spec_of(of, config).constants).get("pairs", 0) == 1) is pairs
        promised = [argument.multiple_of for argument in arguments if isinstance(argument, Leading)]
        assert promised == ([1 + pairs] if "direct" in stem and split_k == 1 else [])


def test_other_architectures_are_refused() -> None:
    """wgmma is Hopper's."""
    assert "wgmma, which sm_100 does not have" in legal(PLAIN, PING_PONG, gpu_for_arch("sm_100"))


def fits(of: GemmProblem, config: Config, shared_bytes: int) -> bool:
    """Whether the ring's stages do, on a GPU whose programs have so much shared memory."""
    stages = traits_of(config).stages
    assert stages is not None
    gpu = replace(H200, shared_bytes_per_block=shared_bytes)
    return not any(mask for mask, _ in stages(of, ConfigTable.of(config), gpu))


def test_shared_memory_is_said_once() -> None:
    """What legality bounds is what the kernel is compiled with and launched with, of each form, every third width.

    Forms, heights, widths and stages meet in one of seven of their combinations (in all in `make test-long`).
    """
    of = (PLAIN, problem(dtype_c="fp32"), problem(row_major_a=False, row_major_b=True))
    blocks = itertools.product(STEMS, (64, 128, 192, 256), range(8, 257, 24), (2, 3, 4, 6, 9))
    seen: Counter[str] = Counter()
    for stem, height, width, stages in spread([*blocks], 7):
        for warps in (12,) if height == 192 else (4, 8):
            block_m, block_n = (width, height) if FORMS[stem].swapped else (height, width)
            config = made(stem, block_m, block_n, 64, 1, 1, warps, stages)
            assert sides(config) == (height, width)
            for each in of:
                if legal(each, config, H200):
                    continue
                constants = dict(spec_of(each, config).constants)
                taken = int(constants["shared_bytes"])
                assert taken <= WARPGROUP_SHARED_BYTES
                assert [fits(each, config, taken - less) for less in (0, 1)] == [True, False]
                assert constants["warps"] == warps + 4
                seen[stem] += 1
    assert seen.keys() == {*STEMS}
    assert seen.total() > 700


def test_one_binary_serves_every_size() -> None:
    """Sizes and GROUP_SIZE_M are run-time arguments, of any alignment."""
    other = problem(5000, 3016, 1992)
    assert spec_of(PLAIN, PING_PONG) == spec_of(other, replace(PING_PONG, GROUP_SIZE_M=3))
    assert spec_of(PLAIN, PING_PONG) != spec_of(PLAIN, replace(PING_PONG, num_stages=4))
    assert spec_of(PLAIN, PING_PONG) != spec_of(problem(bias=True), PING_PONG)


def test_a_plan_has_the_boxes_that_the_kernel_loads() -> None:
    """Descriptors by themselves, with the boxes and swizzles that the kernel loads and stores by."""
    launch = launch_of(problem(bias=True), PING_PONG)
    a, b, c, bias, *sizes = [each for each in launch.arguments if type(each).__name__ != "Constant"]
    assert a == Map("a_desc", "a", (128, 64), False, 3)
    assert b == Map("b_desc", "b", (84, 64), True, 3)
    # 168 columns in three parts that are not swizzled.
    assert c == Map("c_desc", "c", (16, 56), False, 0)
    assert bias == Pointer("bias_ptr", "bias")
    assert [each.name for each in sizes] == ["M", "N", "K", "GROUP_SIZE_M"]
    assert launch.cluster == 2
    # 66 clusters at a time of 16 x 37 pairs of tiles.
    assert launch.programs({"units": 132}) == (66, 1, 1)
    assert launch_of(problem(200, 168), PING_PONG).programs({"units": 132}) == (1, 1, 1)
    assert launch.symbol == "matmul_cute_ping_pong_2x1_p56_BM128_BN168_BK64_nW8_nS5_0"


def test_the_plan_of_a_swapped_kernel() -> None:
    """C goes out by the rows of a part and by 64 columns, 128 bytes; A, B and clusters are as of others."""
    launch = launch_of(PLAIN, SWAPPED)
    a, b, c, *_ = [each for each in launch.arguments if type(each).__name__ != "Constant"]
    assert a == Map("a_desc", "a", (224, 64), False, 3)
    assert b == Map("b_desc", "b", (64, 64), True, 3)
    assert c == Map("c_desc", "c", (56, 64), False, 3)
    # Pairs along M: 10 of them by 48 tiles are more than the 66 that run at a time.
    assert launch_of(problem(4316, 128), SWAPPED).programs({"units": 132}) == (10, 1, 1)
    assert launch.programs({"units": 132}) == (66, 1, 1)
    constants = dict(spec_of(PLAIN, SWAPPED).constants)
    assert (constants["swapped"], constants["cluster_m"], constants["cluster_n"]) == (1, 2, 1)
    assert launch.symbol == "matmul_cute_cooperative_swapped_2x1_p56_BM224_BN128_BK64_nW8_nS4_0"


def test_the_plan_of_other_layouts_and_stores() -> None:
    """Operands that do not run along K come 64 wide, here with half of K; C from registers needs address and pitch."""
    config = Config("cute_wgmma", 256, 128, 64, 4, 1, 8, 4, cluster="2x2", store="direct")
    launch = launch_of(problem(row_major_a=False, row_major_b=True), config)
    a, b, c, *_, pitch = [each for each in launch.arguments if type(each).__name__ != "Constant"]
    assert a == Map("a_desc", "a", (32, 64), True, 3)
    assert b == Map("b_desc", "b", (32, 64), False, 3)
    assert c == Pointer("c_ptr", "c")
    assert pitch == Leading("ldc", "c", 2)
    # Of 132 SMs clusters of four have 120.
    assert launch.programs({"units": 132}) == (30, 1, 1)


def test_plans_are_data() -> None:
    """They go through JSON, for any M."""
    product = product_of(PLAIN, get_op("a16w16"), "sm_90")
    plan = launch_plan(product, PING_PONG, H200, any_m=True)
    assert LaunchPlan.from_json(plan.to_json()) == plan
    assert plan.launches[0].programs({"units": 132, "M": 1}) == (37, 1, 1)


@pytest.mark.parametrize(
    ("fields", "scales"),
    [({}, "none"), (FP8, "whole"), ({**FP8, "own": (("scales", "per_token"),)}, "each")],
)
def test_the_epilogue_applies_scales_bias_and_activation(fields: dict[str, object], scales: str) -> None:
    """Scales as the format declares them, then bias and activation."""
    of = problem(**fields, bias=True, activation="silu")
    constants = dict(spec_of(of, replace(PING_PONG, BLOCK_SIZE_K=128 if fields else 64)).constants)
    assert (constants["scales"], constants["bias"], constants["activation"]) == (scales, 1, "silu")


def test_scales_of_blocks() -> None:
    """A kernel of its own takes them after C, whose finish does not know them; the rest of the plan is as ever."""
    of = problem(**BLOCKS, bias=True)
    spec, launch = spec_of(of, PROMOTED), launch_of(of, PROMOTED)
    assert (spec.file, dict(spec.constants)["scales"]) == ("cute/promoted_sm90.py", "blocks")
    _, _, _, *extras, _, _, _, _ = [each for each in launch.arguments if type(each).__name__ != "Constant"]
    assert extras == [Pointer(f"{name}_ptr", name) for name in ("scale_a", "scale_b", "bias")]
    assert spec_of(problem(**FP8), PROMOTED).file == "cute/dense_sm90.py"
    full = spec_of(problem(**FP8, own=FULL), PROMOTED)
    assert (full.file, dict(full.constants)["scales"]) == ("cute/compiled_only/full_sm90.py", "whole")


def test_generated_modules_leave_them_out() -> None:
    """A module has the operands and the reference for them, and Triton's kernels as if they were not there."""
    triton = Config("tiled", 64, 64, 64)
    both, alone = generate(PLAIN, [PING_PONG, triton], "sm_90", H200), generate(PLAIN, [triton], "sm_90", H200)
    assert both.text == alone.text
    assert set(both.source_sha256) - set(alone.source_sha256) == {"matmul_cute_ping_pong_2x1_p56"}
    only = generate(PLAIN, [PING_PONG], "sm_90", H200).text
    namespace: dict[str, object] = {"__name__": "generated"}
    exec(compile(only, "generated", "exec"), namespace)
    assert namespace["CONFIGS"] == {}
    assert set(namespace["OPERANDS"]) == {"a", "b", "c"}  # type: ignore[call-overload]


def test_a_split_k_is_added_up() -> None:
    """Parts of K like products of a batch, each some K-blocks; their sums, in float32, are a kernel's in Triton."""
    of = problem(864, 240, 9224, dtype_c="bf16", bias=True, activation="relu")
    plan = launch_plan(product_of(of, get_op(of.op), "sm_90"), SPLIT, H200)
    parts, sums = plan.launches
    known = {"units": 132}
    # Seven rows of tiles, one cluster along N for each, four parts: 28 clusters of four of a possible 30.
    assert (parts.cluster, parts.programs(known)) == (4, (28, 1, 1))
    assert parts.programs({"units": 40}) == (9, 1, 1)
    assert plan.workspace_elements(known) == (4 * 864 * 240, 0)
    names = [each.name for each in parts.arguments if not isinstance(each, Constant)]
    assert names == ["a_desc", "b_desc", "partial_ptr", "M", "N", "K", "GROUP_SIZE_M", "ldc", "SPLIT_K"]
    assert (sums.cluster, sums.starts_early) == (1, True)
    assert [each.operand for each in sums.arguments if isinstance(each, Pointer)] == ["c", "bias"]
    assert LaunchPlan.from_json(plan.to_json()) == plan
    module = generate(of, [SPLIT], "sm_90")
    main, added = kernel_specs(of, SPLIT, get_op(of.op), module.source_sha256, "sm_90")
    assert (main.language, added.language) == ("cute", "triton")
    assert dict(main.constants)["dtype_c"] == "fp32"
    assert (dict(main.constants)["bias"], dict(main.constants)["activation"]) == (0, "none")
    assert f"def {added.function}(" in module.kernels_text
    assert f"def {main.function}(" not in module.text
    # Those that do not split are one kernel, which finishes by itself.
    assert len(launch_plan(product_of(of, get_op(of.op), "sm_90"), PING_PONG, H200).launches) == 1
