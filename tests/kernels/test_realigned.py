"""Tests of genkern.kernels.families.alignment_copy: copies where TMA can load them, and the base's kernel on these."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from forms import FORMS, PLACES, REALIGNED
from gluon_cases import assert_exact, fp16_problem, product
from interpreted import Interpreter
from long_tests import in_turns
from small_gemms import make_module, needs_interpreter, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.argument import Copied, Descriptor
from genkern.kernels.contract.product import product_of
from genkern.kernels.families.alignment_copy import copied_operands
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal, legal_problem
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.source import ast_source, load_module
from genkern.kernels.specs import launch_plan, main_variant
from genkern.ops.op import get_op

H200 = gpu_for_arch("sm_90")
TILED = Config("tiled_tma", 32, 32, 32, 3, 1, 4, 3, realigned=1)
SPLIT = Config("tiled_tma", 32, 32, 32, 3, 4, 4, 3, reduce="kernel", realigned=1)
UPRIGHT = Config("warp_specialized", 64, 48, 64, 2, 1, 4, 3, realigned=1)
SWAPPED = Config("warp_specialized", 40, 64, 64, 2, 1, 4, 3, swapped=1, realigned=1)
EVEN = GemmProblem(72, 104, 202, bias=True, activation="relu")
# One of each set of operands that are off 16 bytes, and every layout.
PROBLEMS = [
    (GemmProblem(72, 104, 203, bias=True, activation="relu"), "ab"),
    (GemmProblem(37, 61, 96, row_major_b=True), "b"),
    (GemmProblem(37, 64, 96, row_major_a=False, row_major_b=False), "a"),
    (GemmProblem(37, 61, 97, row_major_a=False, row_major_b=True), "ab"),
    (GemmProblem(1, 61, 97), "ab"),
    # Rows that begin at multiples of 4 bytes are copied by pairs.
    (EVEN, "ab"),
    (GemmProblem(38, 62, 96, row_major_a=False, row_major_b=True), "ab"),
]


def plan_of(problem: GemmProblem, config: Config, any_m: bool = False) -> LaunchPlan:
    return launch_plan(product_of(problem, get_op(problem.op), "sm_90"), config, H200, any_m=any_m)


@pytest.mark.parametrize(("problem", "copied"), PROBLEMS, ids=lambda x: getattr(x, "name", x))
def test_only_what_is_off_16_bytes_is_copied(problem: GemmProblem, copied: str) -> None:
    """The others are loaded where they lie; copies begin and go on at whole cache lines, and do not overlap."""
    assert copied_operands(problem) == copied
    plan = plan_of(problem, TILED)
    assert plan.launches[0].symbol.startswith(f"realign_{copied[::-1]}_")
    found = {each.operand: each for each in plan.launches[1].arguments if isinstance(each, Descriptor)}
    assert "".join(name for name, each in sorted(found.items()) if isinstance(each, Copied)) == copied
    operands = {operand.name: operand for operand in get_op(problem.op).operands(problem)}
    end = 0
    for name in sorted(copied, reverse=True):
        each, (rows, columns) = found[name], operands[name].storage_shape
        assert isinstance(each, Copied)
        assert isinstance(each.pitch, int)
        assert each.first == end
        assert (each.pitch % 64, each.pitch >= columns, each.pitch < columns + 64) == (0, True, True)
        end += rows * each.pitch
    # Of two bytes an element, in elements of four.
    assert plan.workspace_elements({}) == (end // 2, 0)
    assert LaunchPlan.from_json(plan.to_json()) == plan


def test_copies_lie_where_no_m_moves_them() -> None:
    """A plan for any M says where they begin as a number; programs and workspace follow from M."""
    problem, _ = PROBLEMS[0]
    plan = plan_of(problem, TILED, any_m=True)
    for m in (1, 72, 1000):
        own, known = plan_of(replace(problem, M=m), TILED), {"M": m}
        assert plan.workspace_elements(known) == own.workspace_elements({})
        assert [launch.programs(known) for launch in plan.launches] == [launch.programs({}) for launch in own.launches]
    of_a, of_b = (each for each in plan.launches[1].arguments if isinstance(each, Copied))
    assert (of_a.first, of_a.pitch, of_b.first, of_b.pitch) == (104 * 256, 256, 0, 256)


def test_copies_lie_behind_the_sums_of_splits() -> None:
    """At whole cache lines; the workspace holds both, also for other M."""
    problem = GemmProblem(37, 61, 97)
    plan = plan_of(problem, SPLIT, any_m=True)
    assert len(plan.launches) == 3
    for m in (1, 37, 1000):
        own, known = plan_of(replace(problem, M=m), SPLIT), {"M": m}
        assert plan.workspace_elements(known) == own.workspace_elements({})
        sums = 4 * m * 61
        (elements, _), lines = own.workspace_elements({}), -(-sums // 32)
        of_a, of_b = (each for each in own.launches[1].arguments if isinstance(each, Copied))
        # Lines of 64 elements, in which 97 take two.
        assert (of_b.first, of_a.first) == (lines * 64, lines * 64 + 61 * 128)
        assert elements == (lines * 64 + (61 + m) * 128) // 2


def test_refusals() -> None:
    """Each in one line: nothing to copy, C that cannot be stored, other types, more than one product, other devices."""
    off, rows_of_c = GemmProblem(64, 64, 67), GemmProblem(64, 67, 64, row_major_b=True)
    assert len(REALIGNED) == 4
    for stem in REALIGNED:
        form = PLACES[stem]
        assert not legal_problem(off, *form, H200)
        assert "nothing to realign" in legal_problem(GemmProblem(64, 64, 64), *form, H200)
        assert "16 bits" in legal_problem(replace(off, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32"), *form, H200)
        assert "TMA" in legal_problem(off, *form, gpu_for_arch("sm_80"))
        assert "TMA" in legal_problem(off, *form, gpu_for_arch("gfx942"))
        batch = replace(off, op="batched_a16w16", own=(("batch_size", 3),))
        assert "batch" in legal_problem(batch, *form, H200)
        refused = legal_problem(rows_of_c, *form, H200)
        assert ("rows of C" in refused) is FORMS[stem].stores_tma
        huge = GemmProblem(2**20, 64, 2**12 - 1)
        assert "32 bits" in legal_problem(huge, *form, H200)
    assert "does not split K" in legal(off, replace(TILED, SPLIT_K=2), H200)
    wide = GemmProblem(2**14 - 1, 2**14 - 1, 2049)
    assert not legal(wide, replace(SPLIT, SPLIT_K=3), H200)
    assert "sums of splits and copies" in legal(wide, replace(SPLIT, SPLIT_K=4), H200)
    assert "wgmma, which sm_100 does not have" in legal_problem(
        off, UPRIGHT.family, UPRIGHT.others, gpu_for_arch("sm_100")
    )
    # What the base refuses of a config, in its words.
    assert "shared memory" in legal(off, replace(UPRIGHT, BLOCK_SIZE_M=128, num_stages=11), H200)


@pytest.mark.parametrize("config", [TILED, SPLIT, UPRIGHT, SWAPPED], ids=lambda config: traits_of(config).stem)
def test_the_kernel_is_the_bases_own(config: Config) -> None:
    """To the letter, so that a binary of one is the other's."""
    off = GemmProblem(128, 192, 130)
    aligned = replace(off, K=136)
    base = config.with_values(realigned=0)
    variant = main_variant(off, config)
    assert variant == main_variant(aligned, base)
    found = generate(off, [config], "sm_90").source_sha256
    assert found[variant.name] == generate(aligned, [base], "sm_90").source_sha256[variant.name]


@needs_interpreter
@pytest.mark.parametrize(
    ("problem", "copied", "config"),
    # What is copied, and how, is the same for both.
    [*((*each, TILED) for each in in_turns(PROBLEMS, 2, 0)), *((*each, SPLIT) for each in PROBLEMS[1::2])],
    ids=lambda x: getattr(x, "name", x),
)
def test_right_under_the_interpreter(
    interpreter: Interpreter, problem: GemmProblem, copied: str, config: Config
) -> None:
    """Whatever lies in the workspace before, in slices of larger matrices too, at whatever pitch."""
    limit = get_op(problem.op).worst_row_limit(problem)
    extra = {name: 3 if name in copied else 16 for name in "ab"} | {"c": 7}
    for more in (None, extra):
        answer = interpreter.run(problem, config, extra=more)
        assert (answer.worst_row_error <= limit, answer.again) == (True, ""), more
    assert answer.around_is_untouched
    verdict = interpreter.check(problem, config)
    assert (verdict["passed"], verdict["message"]) == (True, "")


@needs_interpreter
@pytest.mark.parametrize("problem", [PROBLEMS[0][0], EVEN], ids=lambda problem: problem.name)
def test_the_check_sees_a_copy_that_is_short(interpreter: Interpreter, problem: GemmProblem) -> None:
    """Columns left out, rows left out, a wrong place: none passes."""
    for right, wrong in (
        ("(offs_column[None, :] < columns)", "(offs_column[None, :] < columns - 1)"),
        ("(offs_row[:, None] < rows)", "(offs_row[:, None] < rows - 1)"),
        ("mask=((row < rows)", "mask=((row < rows - 1)"),
        ("row = first_row + piece", "row = first_row + 1 + piece"),
        ("to_ptr = copies_ptr.to(a_ptr.dtype) + first_a", "to_ptr = copies_ptr.to(a_ptr.dtype)"),
        ("block -= blocks_b", "block -= blocks_b + 1"),
    ):
        assert not interpreter.check(problem, TILED, (right, wrong), "sm_90")["passed"], wrong


@pytest.mark.parametrize("config", [UPRIGHT, SWAPPED], ids=lambda config: traits_of(config).stem)
@pytest.mark.parametrize(("row_major_a", "row_major_b"), [(True, False), (False, False), (True, True), (False, True)])
def test_exact_in_gluon(config: Config, row_major_a: bool, row_major_b: bool) -> None:
    """On the stand-in for an SM: sizes that end anywhere in a box, with anything between the rows of the copies."""
    for m, n, k in ((101, 104, 131), (83, 56, 65)):
        problem = fp16_problem(m, n, k, row_major_a=row_major_a, row_major_b=row_major_b, bias=True)
        if not legal(problem, config, H200):
            assert_exact(product(problem, config, units=3, seed=m))
            continue
        assert (row_major_a, row_major_b) == (True, True)


def test_a_warp_stores_along_rows(tmp_path: Path) -> None:
    """Lanes side by side store 16 bytes each side by side: of 32 rows at a time, copies take twice as long."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    config = Config("tiled_tma", 64, 64, 64, 1, 1, 4, 3, realigned=1)
    module, _ = make_module(tmp_path, fp16_problem(64, 72, 1001), [config], "sm_90")
    copies, _ = specs_of(module, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        source = ast_source(load_module(str(tmp_path / module.file_name)), copies)
        text = compiler.compile(source, target, dict(copies.options)).asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (#ttg.blocked<.*>)$", text, re.MULTILINE))
    stored = re.findall(r"tt\.store .*!tt\.ptr<\w+>, (#\w+)>", text)
    # Of A and of B, by elements and by pairs.
    assert len(stored) == 4
    for name in stored:
        assert re.search(r"sizePerThread = \[1, [48]\], threadsPerWarp = \[32, 1\]", layouts[name]), layouts[name]
