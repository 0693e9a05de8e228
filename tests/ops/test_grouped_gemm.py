"""grouped_gemm: rows in groups, each with a weight of its own; contiguous and masked, in 16 and in 8 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import FORMS, PLACES
from interpreted import Interpreter
from long_tests import drawn, in_turns
from rooflines import roofline_us
from small_gemms import make_module, needs_interpreter

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal, legal_problem
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import bytes_moved, get_op, groups_of
from genkern.packing.m_ranges import m_range
from genkern.search.cost_model.predict import predict_us, promising_first
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

H200 = gpu_for_arch("sm_90")
TILED = Config("tiled", 16, 32, 32, 2, 1, 4, 2)
TMA = Config("tiled_tma", 32, 32, 64, 2, 1, 4, 3)
PERSISTENT = replace(TMA, family="persistent_tma")
FP16 = ("fp16", "fp16", "fp16")
FP8 = ("fp8e4m3fn", "fp8e4m3fn", "fp16")


def problem_of(
    m: int, n: int, k: int, groups: int, types: tuple[str, ...] = FP16, more: tuple[tuple[str, object], ...] = ()
) -> GemmProblem:
    """Rows of so many groups; `more` are own fields besides."""
    return GemmProblem(m, n, k, "grouped_gemm", *types, own=(("groups", groups), *more))  # type: ignore[arg-type]


@needs_interpreter
@pytest.mark.parametrize(
    ("problem", "config"),
    drawn(
        [
            (problem_of(100, 40, 72, 5), TILED),
            (problem_of(100, 40, 72, 5), TMA),
            (problem_of(3, 32, 64, 8), TILED),
            (problem_of(90, 40, 64, 3, more=(("routing", "skewed"),)), TMA),
            (problem_of(60, 40, 72, 4, more=(("capacity", 40),)), TILED),
            (problem_of(60, 40, 72, 4, more=(("capacity", 40), ("routing", "skewed"))), TMA),
            (replace(problem_of(60, 40, 72, 3), activation="silu", row_major_b=True), TILED),
            (problem_of(60, 48, 96, 3, ("int8", "int8", "fp16"), (("scales", "per_token"),)), TILED),
            (problem_of(60, 48, 96, 3, FP8), TMA),
            (problem_of(60, 48, 96, 3, FP8, (("capacity", 40), ("scales", "per_token"))), TMA),
            (problem_of(60, 160, 256, 3, FP8, (("scales", "blocks"),)), TILED),
            (problem_of(60, 160, 256, 3, FP8, (("capacity", 40), ("scales", "blocks"))), TMA),
            (problem_of(100, 40, 72, 5), PERSISTENT),
            (problem_of(60, 40, 72, 4, more=(("capacity", 40), ("routing", "skewed"))), PERSISTENT),
            (problem_of(60, 160, 256, 3, FP8, (("scales", "blocks"),)), PERSISTENT),
            (problem_of(60, 48, 96, 3, FP8, (("scales", "per_token"),)), PERSISTENT),
        ],
        10,
    ),
    ids=lambda value: value.name,
)
def test_passes_the_check(interpreter: Interpreter, problem: GemmProblem, config: Config) -> None:
    """Exact inputs, matrices that lie apart, and random ones; groups may be empty, and end anywhere."""
    verdict = interpreter.check(problem, config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


MASKED = (("capacity", 40),)
FAULTS = {
    "the weight of the next group": ("b_ptr += group.to(tl.int64) * b_step", "b_ptr += (group + 1) * b_step", ()),
    "every group has the first weight": ("b_ptr += group.to(tl.int64) * b_step", "b_ptr += 0", ()),
    "a tile too few for each group": ("tl.cdiv(group_rows, BLOCK_SIZE_M)", "(group_rows // BLOCK_SIZE_M)", ()),
    "rows beyond the group's": ("c, mask=(offs_m[:, None] < last_row", "c, mask=(offs_m[:, None] - 1 < last_row", ()),
    "a row too few": ("last_row = tl.sum(", "last_row = -1 + tl.sum(", ()),
    "the last tile is left out": (">= tiles_m * tiles_n:", ">= tiles_m * tiles_n - 1:", ()),
    "all tiles of a group are its first": ("tile_in_group * BLOCK_SIZE_M", "0", ()),
    "rows that do not count": ("last_row = group * 40 + ", "last_row = group * 40 + 1 + ", MASKED),
    "groups that lie closer": ("first_row = group * 40 +", "first_row = group * 39 +", MASKED),
    "the first group's scales": ("scale_b_ptr += group.to(tl.int64) * scale_b_step", "scale_b_ptr += 0", "scales"),
    "scales of other rows": ("scale_a_ptr + offs_m[:, None]", "scale_a_ptr + 0 * offs_m[:, None]", "scales"),
}


@needs_interpreter
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(interpreter: Interpreter, fault: str) -> None:
    """By exact inputs, wherever a program looks for its group."""
    right, wrong, more = FAULTS[fault]
    types, own = (FP8, (("scales", "per_token"),)) if more == "scales" else (FP16, more)
    problem = problem_of(75, 48, 96, 4, types, own)  # type: ignore[arg-type]
    verdict = interpreter.check(problem, TILED, (right, wrong))
    assert verdict["message"].startswith("exact inputs: "), verdict


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"bias": True}, "rows in groups have no bias"),
        ({"groups": 0}, "is not a whole number from 1 to 1024"),
        ({"groups": 4, "capacity": 1}, "4 groups of 1 rows have no room for 16 rows"),
        ({"scales": "blocks"}, "16-bit operands have no scales"),
        ({"dtype_a": "int8", "dtype_b": "int8", "scales": "blocks"}, "int8 has no scales of blocks"),
        ({"dtype_a": "bf16", "dtype_b": "fp32"}, "must both be int8 or both fp8|must be the same"),
        ({"M": 2**24, "groups": 1024}, "rows times groups are more than"),
    ],
)
def test_what_it_is_not(said: dict[str, object], reason: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=reason):
        resolve({"M": 16, "N": 16, "K": 64, "op": "grouped_gemm", **said}, GemmDefaults(), "sm_90")


def test_which_configs_take_it() -> None:
    """Families that find groups, without a split of K or an order of their own for tiles."""
    problem = problem_of(100, 128, 1024, 4)
    assert {stem for stem in FORMS if not legal_problem(problem, *PLACES[stem], H200)} == {
        "tiled",
        "tiled_tma",
        "persistent_tma",
        "warp_specialized",
        "warp_specialized_swapped",
    }
    assert "not split along K" in legal(problem, replace(TILED, SPLIT_K=2), H200)
    assert "order of their own" in legal(problem, replace(TILED, xcd_remap=1), gpu_for_arch("gfx942"))
    assert "rowMajorA: T" in legal_problem(replace(problem, row_major_a=False), "tiled", (), H200)
    blocks = problem_of(100, 128, 1024, 4, FP8, (("scales", "blocks"),))
    assert "BLOCK_SIZE_K must divide" in legal(blocks, replace(TILED, BLOCK_SIZE_K=256), H200)


def test_work_and_bytes() -> None:
    """Operations are those of M rows; weights count as far as groups have rows; a masked one's other rows do not."""
    problem, masked = problem_of(64, 256, 512, 16), problem_of(64, 256, 512, 16, more=(("capacity", 64),))
    assert problem.flops == masked.flops == 2 * 64 * 256 * 512
    groups = groups_of(problem)
    assert groups is not None
    assert 15 < groups.expected_used(64) < 16 < groups.most_tiles(64, 16) == (64 + 16 * 15) // 16
    of_weights = 2 * 256 * 512 * groups.expected_used(64)
    assert bytes_moved(problem) == pytest.approx(of_weights + 64 * 2 * (256 + 512) + 64, abs=4)
    assert bytes_moved(masked) == pytest.approx(bytes_moved(problem), abs=4)
    assert roofline_us(problem, H200) <= predict_us(problem, TILED, Resources(), H200) < 1e5


def test_tiles_in_gluon_that_fit_groups_come_first() -> None:
    """Of groups that have about 256 rows half have more: tiles of 136 are two of each, of 128 often three; and groups
    of 32 rows take swapped tiles only, of no more rows than they have.
    """
    space, bf16 = load_space(None, "sm_90", "grouped_gemm"), ("bf16", "bf16", "bf16")
    few = problem_of(512, 4096, 7168, 16, (FP8[0], FP8[0], "bf16"), (("capacity", 256), ("scales", "blocks")))
    many = problem_of(1024, 4096, 7168, 4, bf16, (("capacity", 1024),))
    first, second = (Config("warp_specialized", m, 128, 64, 1, 1, 4, 4, swapped=1) for m in (136, 128))
    assert predict_us(many, first, Resources(), H200) < 0.8 * predict_us(many, second, Resources(), H200)
    order = promising_first(many, prune(space, many, H200).kept, H200)
    assert {config.family for config in order[:20]} == {"warp_specialized"}
    kept = [config for config in prune(space, few, H200).kept if config.family == "warp_specialized"]
    assert {config.BLOCK_SIZE_M for config in kept if not config.swapped} == {64}
    assert {config.BLOCK_SIZE_M for config in kept if config.swapped} == {32, 40, 48}


def test_a_plan_serves_every_m() -> None:
    """The grid is for as many tiles as there may be, however rows are shared; kernels are the same for all M."""
    problem = problem_of(100, 64, 256, 5)
    product = product_of(problem, get_op(problem.op), "sm_90")
    plan = launch_plan(product, TILED, H200, any_m=True)
    assert [plan.launches[0].programs({"units": 1, "M": m})[0] for m in (1, 100, 128)] == [2, 2 * 10, 2 * 12]
    assert LaunchPlan.from_json(plan.to_json()) == plan
    found = m_range(problem, TILED, H200, (1, 5000))
    assert (found.least_m, found.most_m) == (1, 5000)
    of_masked = product_of(replace(problem, own=(("capacity", 33), ("groups", 5))), get_op(problem.op), "")
    masked = launch_plan(of_masked, TILED, H200)
    assert masked.launches[0].programs({}) == (2 * 15, 1, 1)


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA, with and without scales."""
    fp8 = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    bf16 = problem_of(300, 256, 320, 5, ("bf16", "bf16", "bf16"))
    blocks = problem_of(300, 256, 384, 5, (fp8, fp8, "bf16"), (("scales", "blocks"), ("capacity", 128)))
    wide = replace(TILED, BLOCK_SIZE_M=64, BLOCK_SIZE_N=64)
    # Each way with one of the problems, but for `make test-long`.
    for turn, problem in enumerate((bf16, blocks)):
        assert compile_all(tmp_path, problem, in_turns([wide, TILED, TMA, PERSISTENT], 2, turn), arch)


def test_a_module_says_what_it_misreads(tmp_path: Path) -> None:
    """Weights that lie apart are taken, but not by the copy engine; routing is the same in every process."""
    torch = pytest.importorskip("torch")
    problem = problem_of(30, 48, 64, 3, more=(("routing_seed", 5),))
    _, module = make_module(tmp_path, problem, [TILED, TMA], "sm_90")
    operands = module.make_operands("cpu")
    groups = groups_of(problem)
    assert groups is not None
    assert operands["ends"].equal(groups.values(30, get_op(problem.op).operands(problem)[3]))
    apart = {**operands, "b": torch.zeros(6, 48, 64, dtype=torch.float16)[::2].mT}
    module.check_operands(module.CONFIGS[TILED.name], apart)
    module.check_operands(module.CONFIGS[TMA.name], operands)
    with pytest.raises(ValueError, match="needs weights without gaps"):
        module.check_operands(module.CONFIGS[TMA.name], apart)
    with pytest.raises(ValueError, match="ends must be"):
        module.check_operands(module.CONFIGS[TILED.name], {**operands, "ends": operands["ends"].long()})


def test_what_the_interpreter_checks_is_small() -> None:
    """Few groups of few rows, with masks where the problem has them."""
    problem = problem_of(4096, 256, 7168, 256, more=(("capacity", 4096),))
    small = reduced_problem(problem, TILED)
    assert dict(small.own) == {"groups": 4, "capacity": 33}
    assert small.M <= 33


# Each has some of the sizes, but for `make test-long`.
@pytest.mark.parametrize(("turn", "arch"), [*enumerate(["sm_80", "sm_90", "gfx942", "gfx950"])])
@pytest.mark.parametrize("more", [(), (("capacity", 512),)])
def test_spaces_have_something_for_every_size(turn: int, arch: str, more: tuple[tuple[str, object], ...]) -> None:
    """For few rows and for many."""
    space = load_space(None, arch, "grouped_gemm")
    for m, groups in in_turns(((1, 8), (64, 256), (8192, 32)), 2, turn + bool(more)):
        problem = problem_of(m, 1280, 2048, groups, ("bf16", "bf16", "bf16"), more)
        assert prune(space, problem, gpu_for_arch(arch)).kept
