"""batched_a16w16 and batched_a8w8: many products of one size in a call, with a stride for each operand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import CUTE_FORMS, FORMS, PLACES
from interpreted import INTERPRETED, Interpreter
from long_tests import in_turns
from rooflines import roofline_us
from small_gemms import (
    GEMV,
    SEMAPHORE,
    SPLIT,
    SWAPPED,
    TILED,
    TILED_TMA_SPLIT,
    TMA_SWAPPED,
    make_module,
    needs_interpreter,
)

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.contract.argument import Constant, Leading, Stride
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal, legal_problem
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import bytes_moved, get_op
from genkern.search.cost_model.predict import predict_us
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

H200 = gpu_for_arch("sm_90")
FP16 = ("batched_a16w16", "fp16", "fp16", "fp16")
INT8 = ("batched_a8w8", "int8", "int8", "bf16")


def problem_of(m: int, n: int, k: int, batch: int, types: tuple[str, ...] = FP16, **more: object) -> GemmProblem:
    """A problem of so many products."""
    return GemmProblem(m, n, k, *types, own=(("batch_size", batch),), **more)  # type: ignore[arg-type]


def test_the_batch_counts() -> None:
    """In operations, bytes, and predicted time; the products of a batch are no larger by it."""
    one, many = (problem_of(64, 1280, 8192, batch) for batch in (1, 16))
    assert (many.batch, many.flops, bytes_moved(many)) == (16, 16 * one.flops, 16 * bytes_moved(one))
    assert roofline_us(many, H200) == pytest.approx(16 * roofline_us(one, H200))
    few, more = (problem_of(64, 1280, 8192, batch) for batch in (64, 128))
    assert predict_us(more, TILED, Resources(), H200) > 1.5 * predict_us(few, TILED, Resources(), H200)
    a, b, c = get_op(many.op).operands(many)
    assert (a.tensor_shape, b.tensor_shape, b.storage_shape, c.tensor_shape) == (
        *((16, 64, 8192), (16, 8192, 1280)),
        *((16, 1280, 8192), (16, 64, 1280)),
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"bias": True}, "a batch of products has no bias"),
        ({"batch_size": 0}, "is not a whole number from 1 to 65535"),
        ({"batch_size": 65536}, "from 1 to 65535"),
        ({"M": 2**16, "K": 2**15}, "more elements than 32 bits count"),
        ({"dtype_a": "bf16", "dtype_b": "fp32"}, "must be the same"),
        ({"op": "batched_a8w8", "dtype_a": "bf16"}, "must both be int8 or both fp8"),
        ({"op": "a16w16", "batch_size": 2}, "batch_size is not a field of a16w16"),
    ],
)
def test_what_it_is_not(said: dict[str, object], reason: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=reason):
        resolve({"M": 1, "N": 16, "K": 64, "op": "batched_a16w16", **said}, GemmDefaults(), "sm_90")


@needs_interpreter
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (problem_of(37, 40, 70, 3, activation="relu"), SPLIT),
        (problem_of(20, 40, 72, 2), TILED_TMA_SPLIT),
        (problem_of(20, 40, 72, 2), TMA_SWAPPED),
        (problem_of(20, 40, 96, 2, INT8, row_major_a=False, row_major_b=True), SEMAPHORE),
        (problem_of(20, 40, 96, 2, INT8), SWAPPED),
        (problem_of(20, 40, 96, 2, ("batched_a16w16", "fp32", "fp32", "fp32"), row_major_b=True), SPLIT),
        (problem_of(1, 40, 300, 3), GEMV),
    ],
    ids=lambda value: value.name,
)
def test_every_family_passes_the_check(interpreter: Interpreter, problem: GemmProblem, config: Config) -> None:
    """Exact inputs, matrices that lie apart, and random ones; splits have sums and counters of each product."""
    verdict = interpreter.check(problem, config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


FAULTS = {
    "the first product's A": (SPLIT, "a_ptr += batch * a_step", "a_ptr += 0"),
    "A and B go together": (SPLIT, "b_ptr += batch * b_step", "b_ptr += batch * a_step"),
    "sums of all products in one place": (SPLIT, "partial_ptr += batch * partial_step", "partial_ptr += 0"),
    "C of the product before": (SPLIT, "c_ptr += batch * c_step", "c_ptr += batch * 0"),
    "one counter for all": (SEMAPHORE, "arrived_ptr += batch * arrived_step", "arrived_ptr += 0"),
    "rows of the first product": (TILED_TMA_SPLIT, "tl.program_id(2) * N + ", ""),
    "the first product's scales": (SWAPPED, "scale_b_ptr += batch * scale_b_step", "scale_b_ptr += 0"),
}


@needs_interpreter
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(interpreter: Interpreter, fault: str) -> None:
    """By exact inputs."""
    config, right, wrong = FAULTS[fault]
    problem = problem_of(20, 48, 96, 2, INT8 if "scale" in fault else FP16)
    verdict = interpreter.check(problem, config, (right, wrong))
    assert verdict["message"].startswith("exact inputs: C["), verdict


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA; kernels with and without a split, and of one row."""
    assert compile_all(tmp_path, problem_of(100, 208, 320, 5), [SPLIT, SWAPPED, TILED_TMA_SPLIT], arch)
    assert compile_all(tmp_path, problem_of(1, 208, 320, 5, INT8), [GEMV], arch)


def test_which_families_take_it() -> None:
    """Those whose grids have a third dimension to spare, or whose programs walk over all products; through TMA where
    what overhangs K is outside all matrices.
    """
    batch = problem_of(1, 128, 1024, 4)
    taking = {stem for stem in FORMS if not legal_problem(batch, *PLACES[stem], H200)}
    tiled = {"tiled", "tiled_semaphore", "tiled_swapped"}
    whole = {stem for stem in CUTE_FORMS if PLACES[stem][0] == "cute_wgmma"}
    assert taking == {*tiled, "gemv", "tiled_tma", "tiled_tma_swapped", *whole}
    assert taking - whole < set(INTERPRETED)
    for turned in (replace(batch, M=16, row_major_a=False), replace(batch, row_major_b=True)):
        assert "zeros beyond K only" in legal_problem(turned, "tiled_tma", (), H200)
    assert "more rows than 32 bits" in legal_problem(problem_of(2**15, 128, 64, 2**15), "tiled_tma", (), H200)
    direct = Config("cute_wgmma", 128, 128, 64, 1, 1, 8, 4, store="direct")
    large = replace(batch, M=128, K=4096)
    assert not legal(large, direct, H200)
    assert legal(large, replace(direct, SPLIT_K=2), H200)
    huge = problem_of(2**15, 2**15, 64, 4)
    assert "than 32 bits count" in legal(huge, replace(SPLIT, SPLIT_K=2), H200)
    assert not legal(huge, replace(SPLIT, SPLIT_K=1), H200)


def test_a_plan_serves_all_products() -> None:
    """Grid, workspace and counters are of the whole batch, and the plan is whole as JSON."""
    problem = problem_of(100, 64, 256, 5)
    plan = launch_plan(product_of(problem, get_op(problem.op), "sm_90"), SEMAPHORE, H200)
    assert plan.launches[0].programs({}) == (4, 3, 5)
    assert plan.workspace_elements({}) == (5 * 4 * 3 * 64 * 32, 5 * 4)
    assert LaunchPlan.from_json(plan.to_json()) == plan


def test_a_module_says_what_it_misreads(tmp_path: Path) -> None:
    """Matrices that lie apart are taken, but not by the copy engine; what overlaps in a matrix is not."""
    torch = pytest.importorskip("torch")
    _, module = make_module(tmp_path, problem_of(8, 48, 64, 3), [TILED, TILED_TMA_SPLIT], "sm_90")
    operands = module.make_operands("cpu")
    assert operands["b"].stride() == (48 * 64, 1, 64)
    apart = {**operands, "a": torch.zeros(6, 8, 64, dtype=torch.float16)[::2]}
    between = {**operands, "a": torch.zeros(8, 3, 64, dtype=torch.float16).transpose(0, 1)}
    for given in (operands, apart, between):
        module.check_operands(module.CONFIGS[TILED.name], given)
    module.check_operands(module.CONFIGS[TILED_TMA_SPLIT.name], operands)
    for given in (apart, between):
        with pytest.raises(ValueError, match="needs a batch without gaps"):
            module.check_operands(module.CONFIGS[TILED_TMA_SPLIT.name], given)
    with pytest.raises(ValueError, match="a is "):
        module.check_operands(module.CONFIGS[TILED.name], {**operands, "a": operands["a"][:2]})
    turned = torch.zeros(3, 64, 8, dtype=torch.float16).mT
    with pytest.raises(ValueError, match="without overlap"):
        module.check_operands(module.CONFIGS[TILED.name], {**operands, "a": turned})


def test_what_the_interpreter_checks_has_few_products() -> None:
    """A batch of thousands is one of three there."""
    assert reduced_problem(problem_of(64, 128, 512, 1000), TILED).batch == 3
    assert reduced_problem(problem_of(64, 128, 512, 2), TILED).batch == 2


# Each has some of the sizes, but for `make test-long`.
@pytest.mark.parametrize(("turn", "arch"), [*enumerate(["sm_80", "sm_90", "gfx942", "gfx1201"])])
@pytest.mark.parametrize("types", [("bf16", "bf16"), ("int8", "bf16")])
def test_spaces_have_something_for_every_size(turn: int, arch: str, types: tuple[str, str]) -> None:
    """Those of plain products are theirs."""
    a, c = types
    op = "batched_a16w16" if a == c else "batched_a8w8"
    space = load_space(None, arch, op)
    for size in in_turns(((1, 1280, 8192), (64, 128, 512), (4096, 512, 128), (3, 17, 33)), 2, turn + (a == c)):
        problem = problem_of(*size, 16, (op, a, a, c))
        assert prune(space, problem, gpu_for_arch(arch)).kept, size


def test_programs_in_cute_walk_over_all_products() -> None:
    """One grid for all of them, in which each pointer has a step; what they load and store by TMA has no gaps."""
    config = Config("cute_wgmma", 128, 128, 64, 2, 1, 8, 4, schedule="ping_pong")
    problem = problem_of(300, 200, 136, 5, ("batched_a16w16", "bf16", "bf16", "bf16"))
    for any_m in (False, True):
        plan = launch_plan(product_of(problem, get_op(problem.op), "sm_90"), config, H200, any_m=any_m)
        (launch,) = plan.launches
        assert [launch.programs({"units": units, "M": 300}) for units in (8, 132)] == [(8, 1, 1), (5 * 3 * 2, 1, 1)]
        names = [each.name for each in launch.arguments if not isinstance(each, Constant)]
        assert names == ["a_desc", "b_desc", "c_desc", "c_ptr", "M", "N", "K", "GROUP_SIZE_M", "ldc", "BATCH", "c_step"]
        assert LaunchPlan.from_json(plan.to_json()) == plan
    assert all(each.multiple_of == 1 for each in launch.arguments if isinstance(each, (Leading, Stride)))


def test_what_programs_in_cute_refuse() -> None:
    """What is beyond K is the next product's where rows run otherwise, and sizes that 32 bits do not count."""
    config = Config("cute_wgmma", 128, 128, 64, 2, 1, 8, 4, schedule="ping_pong")
    types = ("batched_a16w16", "bf16", "bf16", "bf16")
    assert not legal(problem_of(300, 200, 136, 5, types), config, H200)
    for turned in ({"row_major_a": False}, {"row_major_b": True}):
        assert "beyond K" in legal(problem_of(304, 200, 136, 5, types, **turned), config, H200)
        assert not legal(problem_of(304, 200, 128, 5, types, **turned), config, H200)
    assert "more rows than 32 bits" in legal(problem_of(2**15, 128, 64, 2**15, types), config, H200)
