"""a16w16 with one operand in fp16 and the other in bf16: neither is rounded to the other's type."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import CUTE_FORMS, FORMS, PLACES, REALIGNED, RINGS
from interpreted import Interpreter
from long_tests import in_turns
from small_gemms import FEW_ROWS, GEMV, SPLIT, SWAPPED, TILED, TILED_TMA_SPLIT, kernels_of, needs_interpreter

from genkern.errors import InputError
from genkern.files.aiter_csv import obstacle
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal_problem
from genkern.ops.op import get_op
from genkern.space.prune import prune
from genkern.space.space import load_space

PAIRS = [("bf16", "fp16"), ("fp16", "bf16")]


def problem_of(m: int, n: int, k: int, types: tuple[str, str], **more: object) -> GemmProblem:
    return GemmProblem(m, n, k, dtype_a=types[0], dtype_b=types[1], **{"dtype_c": types[0], **more})  # type: ignore[arg-type]


def test_which_types_go_together() -> None:
    """fp16 with bf16, in either place and in a batch too; not with fp32. C has A's type, and AITER no room for it."""
    size = {"M": 16, "N": 64, "K": 64}
    for a, b in PAIRS:
        for op in ("a16w16", "batched_a16w16"):
            problem = resolve({**size, "op": op, "dtype_a": a, "dtype_b": b}, GemmDefaults(), "sm_90").problem
            assert (problem.dtype_a, problem.dtype_b, problem.dtype_c) == (a, b, a)
            assert "no product of fp16 and bf16" in get_op(op).no_vendor(problem)
        assert "one type for A and B" in obstacle(problem_of(1, 64, 64, (a, b)))
    with pytest.raises(InputError, match="fp16 and bf16"):
        resolve({**size, "dtype_a": "fp32", "dtype_b": "fp16"}, GemmDefaults(), "sm_90")


@needs_interpreter
@pytest.mark.parametrize(
    ("size", "config"), [((37, 40, 70), SPLIT), ((20, 48, 96), SWAPPED), ((1, 40, 160), GEMV)], ids=str
)
def test_kernels_pass_the_check(interpreter: Interpreter, size: tuple[int, int, int], config: Config) -> None:
    """With what stands in for bf16 there; the same texts run on a GPU."""
    verdict = interpreter.check(problem_of(*size, PAIRS[1], bias=True, activation="silu"), config)
    assert verdict["passed"], verdict


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_operands_meet_in_float32(types: tuple[str, str]) -> None:
    """As tl.dot takes it: of NVIDIA's matrix instructions that is tf32, which has the numbers of both."""
    for config, product in (
        (TILED, "a.to(tl.float32), b.to(tl.float32)"),
        (SWAPPED, "b.to(tl.float32), a.to(tl.float32)"),
    ):
        texts = kernels_of(generate(problem_of(64, 64, 64, types), [config], "sm_90"))
        assert any(f"acc = tl.dot({product}, acc)" in text for text in texts.values())


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """In each layout of B; with and without a dot."""
    for number, row_major_b in enumerate((False, True)):
        problem = problem_of(100, 208, 320, PAIRS[number], row_major_b=row_major_b)
        assert compile_all(tmp_path, problem, in_turns([TILED, SWAPPED, TILED_TMA_SPLIT], 2, number), arch)
    assert compile_all(tmp_path, problem_of(1, 208, 320, PAIRS[0]), [GEMV, FEW_ROWS], arch)


def test_which_families_take_it() -> None:
    """All but those whose instruction multiplies operands of one type, or weights of fewer bits."""
    where = gpu_for_arch("sm_90")
    refused = {stem for stem in FORMS if legal_problem(problem_of(1, 128, 1024, PAIRS[0]), *PLACES[stem], where)}
    assert refused == {*RINGS, *CUTE_FORMS, *REALIGNED, "skinny_dot"}
    for arch in ("sm_90", "gfx942"):
        space = load_space(None, arch, "a16w16")
        for m in (1, 64, 4096):
            assert prune(space, problem_of(m, 4096, 4096, PAIRS[1]), gpu_for_arch(arch)).kept
