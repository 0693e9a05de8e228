"""fused_moe: both products of a mixture of experts, with tokens gathered, gated, weighted and added up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import FORMS, PLACES
from interpreted import Interpreter
from long_tests import drawn, in_turns
from small_gemms import make_module, needs_interpreter

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal_problem
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import columns_of_b, get_op, library_of
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

H200 = gpu_for_arch("sm_90")
TILED = Config("tiled", 16, 32, 32, 2, 1, 4, 2)
TMA = Config("tiled_tma", 32, 32, 64, 2, 1, 4, 3)
PERSISTENT = replace(TMA, family="persistent_tma")
FP16 = ("fp16", "fp16", "fp16")
FP8 = ("fp8e4m3fn", "fp8e4m3fn", "fp16")
BF16 = ("bf16", "bf16", "bf16")
INT8 = ("int8", "int8", "fp16")


def problem_of(
    stage: str,
    tokens: int,
    n: int,
    k: int,
    experts: int,
    top_k: int,
    types: tuple[str, ...] = FP16,
    **more: object,
) -> GemmProblem:
    """A stage for so many tokens; `more` are own fields besides."""
    own = {"experts": experts, "top_k": top_k, **({"stage": stage} if stage == "gate_up" else {}), **more}
    activation = "silu" if stage == "gate_up" else "none"
    fields = tuple((name, value) for name, value in sorted(own.items()) if (name, value) != ("top_k", 1))
    return GemmProblem(tokens, n, k, "fused_moe", *types, activation=activation, own=fields)  # type: ignore[arg-type]


CASES = [
    *(problem_of(stage, 50, 40, 72, 5, 2) for stage in ("gate_up", "down")),
    *(problem_of(stage, 1, 32, 64, 8, 4) for stage in ("gate_up", "down")),
    *(problem_of(stage, 40, 40, 64, 6, 3, routing="skewed") for stage in ("gate_up", "down")),
    *(problem_of(stage, 20, 40, 64, 4, 1, BF16) for stage in ("gate_up", "down")),
    *(replace(problem_of(stage, 20, 40, 64, 4, 2), row_major_b=True) for stage in ("gate_up", "down")),
    *(problem_of(stage, 20, 48, 96, 4, 2, FP8) for stage in ("gate_up", "down")),
    *(problem_of(stage, 20, 48, 96, 4, 2, FP8, scales="per_token") for stage in ("gate_up", "down")),
    *(problem_of(stage, 20, 48, 96, 4, 2, INT8, scales="per_token") for stage in ("gate_up", "down")),
    *(problem_of(stage, 20, 160, 256, 4, 2, FP8, scales="blocks") for stage in ("gate_up", "down")),
]


# Each family has both stages, and every kind of problem one of them.
CHECKED = [
    (problem, config) for turn, problem in enumerate(CASES) for config in in_turns((TILED, TMA, PERSISTENT), 3, turn)
]


@needs_interpreter
@pytest.mark.parametrize(("problem", "config"), drawn(CHECKED, 10), ids=lambda value: value.name)
def test_passes_the_check(interpreter: Interpreter, problem: GemmProblem, config: Config) -> None:
    """Exact inputs, matrices that lie apart, and random ones; experts may have no rows."""
    if config is not TILED and problem.row_major_b:
        config = replace(TILED, BLOCK_SIZE_M=32)
    verdict = interpreter.check(problem, config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


FAULTS = {
    "rows of A as they lie": ("gate_up", "rows_a = slots // 2", "rows_a = offs_m // 2"),
    "every slot is a token": ("gate_up", "rows_a = slots // 2", "rows_a = slots // 3"),
    "the gate twice": ("gate_up", "tl.load(b_ptrs + N * ldb", "tl.load(b_ptrs + 0 * ldb"),
    "the up of a column before": ("gate_up", "tl.load(b_ptrs + N * ldb", "tl.load(b_ptrs + (N - 1) * ldb"),
    "up goes through the gate": ("gate_up", "activate(acc) * up", "activate(up) * acc"),
    "no activation": ("gate_up", "activate(acc) * up", "acc * up"),
    "the first expert's weight": ("gate_up", "b_ptr += group.to(tl.int64) * b_step", "b_ptr += 0"),
    "rows by their order": ("down", "+ slots[:, None].to(tl.int64) * N", "+ offs_m[:, None] * N"),
    "weights by their order": ("down", "routing_weights_ptr + slots", "routing_weights_ptr + offs_m"),
    "a slot too few": ("down", "tl.static_range(2)", "tl.static_range(1)"),
    "slots of the next token": ("down", "(row * 2 + slot)", "(row * 2 + slot + 1)"),
    "the last block of columns": ("down", "M * triton.cdiv(N, 1024)", "(M - 1) * triton.cdiv(N, 1024)"),
}


@needs_interpreter
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(interpreter: Interpreter, fault: str) -> None:
    """By exact inputs."""
    stage, right, wrong = FAULTS[fault]
    verdict = interpreter.check(problem_of(stage, 45, 48, 96, 4, 2), TILED, (right, wrong))
    assert verdict["message"].startswith("exact inputs: "), verdict


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"bias": True}, "experts have no bias"),
        ({"stage": "gate_up"}, "a gate needs an activation"),
        ({"activation": "silu"}, "has no activation"),
        ({"top_k": 8}, "rows in 8 groups: there are 4"),
        ({"top_k": 0}, "is not a whole number from 1 to 32"),
        ({"scales": "per_token"}, "16-bit operands have no scales"),
        ({"stage": "up"}, "is not one of down, gate_up"),
    ],
)
def test_what_it_is_not(said: dict[str, object], reason: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=reason):
        resolve({"M": 16, "N": 16, "K": 64, "op": "fused_moe", "experts": 4, **said}, GemmDefaults(), "sm_90")


def test_operands_and_work() -> None:
    """The first stage has weights of gate and up, and rows of slots; the second sums these."""
    gate, down = problem_of("gate_up", 64, 256, 512, 16, 4), problem_of("down", 64, 512, 256, 16, 4)
    assert (gate.flops, down.flops) == (2 * 2 * 64 * 4 * 256 * 512, 2 * 64 * 4 * 256 * 512)
    assert (columns_of_b(gate), columns_of_b(down)) == (2, 1)
    shapes = [[operand.shape for operand in get_op("fused_moe").operands(each)] for each in (gate, down)]
    assert shapes == [
        [(64, 512), (16, 512, 512), (256, 256), (16,), (256,)],
        [(256, 256), (16, 256, 512), (64, 512), (16,), (256,), (256,)],
    ]
    assert {stem for stem in FORMS if not legal_problem(gate, *PLACES[stem], H200)} == {
        "tiled",
        "tiled_tma",
        "persistent_tma",
    }


def test_a_plan_counts_slots() -> None:
    """Tiles of all slots' rows, and a workspace of their rows in C's type for the sum, whatever M."""
    problem = problem_of("down", 100, 2048, 256, 8, 4, BF16)
    plan = launch_plan(product_of(problem, get_op(problem.op), "sm_90"), TILED, H200, any_m=True)
    for tokens in (1, 100, 1000):
        known = {"units": 1, "M": tokens}
        rows = tokens * 4
        assert plan.launches[0].programs(known)[0] == (rows + min(8, rows) * 15) // 16 * 64
        assert plan.launches[1].programs(known)[0] == tokens * 2
        assert plan.workspace_elements(known) == (rows * 2048 // 2, 0)
    assert LaunchPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("arch", SHARING)
@pytest.mark.parametrize("stage", ["gate_up", "down"])
def test_kernels_compile(tmp_path: Path, arch: str, stage: str) -> None:
    """For AMD and NVIDIA, with and without scales."""
    fp8 = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    blocks = problem_of(stage, 300, 256, 384, 5, 2, (fp8, fp8, "bf16"), scales="blocks")
    wide = replace(TILED, BLOCK_SIZE_M=64, BLOCK_SIZE_N=64)
    # Each way with one of the problems, but for `make test-long`.
    for turn, problem in enumerate((problem_of(stage, 300, 256, 320, 5, 2, BF16), blocks)):
        assert compile_all(tmp_path, problem, in_turns([wide, TILED, TMA, PERSISTENT], 2, turn), arch)


@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.name)
def test_the_library_computes_the_reference(tmp_path: Path, problem: GemmProblem) -> None:
    """What a call falls back on."""
    torch = pytest.importorskip("torch")
    _, module = make_module(tmp_path, problem, [TILED], "sm_90")
    operands = module.make_operands("cpu")
    library = library_of(problem.op)
    assert library is not None
    found, wanted = library(problem, operands), module.reference(operands)
    assert (found.shape, found.dtype) == (operands["c"].shape, operands["c"].dtype)
    assert torch.linalg.norm(found.double() - wanted.double()) < 2**-6 * torch.linalg.norm(wanted.double())


def test_what_the_interpreter_checks_is_small() -> None:
    """Few experts, but as many as a token goes to."""
    small = reduced_problem(problem_of("gate_up", 4096, 256, 7168, 256, 8, BF16), TILED)
    assert dict(small.own) == {"experts": 8, "top_k": 8, "stage": "gate_up"}


# Each has some of the sizes, but for `make test-long`.
@pytest.mark.parametrize(("turn", "arch"), [*enumerate(["sm_80", "sm_90", "gfx942", "gfx950"])])
def test_spaces_have_something_for_every_size(turn: int, arch: str) -> None:
    """For one token and for many."""
    space = load_space(None, arch, "fused_moe")
    for tokens in (1, 64, 4096):
        for stage, n, k in in_turns((("gate_up", 256, 7168), ("down", 7168, 256)), 2, turn + (tokens == 64)):
            assert prune(space, problem_of(stage, tokens, n, k, 256, 8, BF16), gpu_for_arch(arch)).kept
