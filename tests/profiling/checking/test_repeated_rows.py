"""Checks of tall products repeat the rows of A, so that one period's reference serves all rows of C."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from interpreted import takes
from small_gemms import TILED, make_module

from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.bands import period_of
from genkern.profiling.checking.verdict import Checking, Subject, Verdict

torch = pytest.importorskip("torch")

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
# The last period is a partial one.
M = 10_000
TALL = [
    GemmProblem(M, 24, 64, bias=True, activation="gelu"),
    GemmProblem(M, 24, 64, dtype_c="fp32", row_major_a=False),
    GemmProblem(M, 24, 64, "a8w8", *FP8, own=(("scales", "per_token"),)),
    GemmProblem(M + 6000, 72, 160, "a8w8_blockscale", *FP8, own=(("block_k", 32), ("block_n", 16))),
    GemmProblem(M, 24, 64, "a4w4_blockscale", "int8", "int8", "bf16"),
    GemmProblem(M, 24, 64, "a16w4", "bf16", "int8", "bf16"),
]


def checked(problem: GemmProblem, folder: Path, launch: Any) -> tuple[Verdict, int]:
    """The verdict on `launch(reference, operands)`, and how many rows of C the references had."""
    config = TILED if takes(problem, TILED) else replace(TILED, BLOCK_SIZE_K=64)
    _, module = make_module(folder, problem, [config], "sm_90")
    rows = 0

    def reference(operands: dict[str, Any]) -> Any:
        nonlocal rows
        rows += operands["a"].shape[-2]
        return module.reference(operands)

    checking = Checking(problem, get_op(problem.op), "sm_90", reference, module.make_operands("cpu"))
    verdict = checking.check(Subject(lambda operands: launch(module.reference, operands)))
    return verdict, rows // (len(checking.rounds) + 1)


def moe(M: int, stage: str, dtypes: tuple[str, ...] = (), **own: object) -> GemmProblem:
    fields = {"experts": 6, "top_k": 2, "stage": stage, **own}
    gate = "silu" if stage == "gate_up" else "none"
    return GemmProblem(M, 24, 64, "fused_moe", *dtypes, activation=gate, own=tuple(sorted(fields.items())))  # type: ignore[arg-type]


# The last period is a partial one.
GROUPED = [
    GemmProblem(M, 24, 64, "grouped_gemm", own=(("groups", 6),)),
    GemmProblem(M, 24, 128, "grouped_gemm", *FP8, own=(("groups", 6), ("routing", "skewed"), ("scales", "blocks"))),
    moe(M, "gate_up"),
    moe(M, "down", routing="skewed"),
    moe(M, "gate_up", FP8, scales="per_token"),
    moe(M, "down", FP8, scales="per_token"),
]


@pytest.mark.parametrize("problem", GROUPED, ids=lambda problem: problem.name)
def test_groups_of_many_tokens_pass_with_the_reference_of_one_period(problem: GemmProblem, tmp_path: Path) -> None:
    verdict, rows = checked(problem, tmp_path, right)
    assert verdict.passed, verdict.message
    of_a = get_op(problem.op).operands(problem)[0].shape[0]
    assert 0 < rows <= 0.3 * of_a


@pytest.mark.parametrize("problem", GROUPED[:4], ids=lambda problem: problem.name)
def test_one_wrong_row_of_any_group_is_found(problem: GemmProblem, tmp_path: Path) -> None:
    rows = get_op(problem.op).operands(problem)[2].shape[0]
    for row in (0, 5000, rows - 1):

        def wrong(reference: Any, operands: dict[str, Any], row: int = row) -> None:
            right(reference, operands)
            operands["c"][row, 7] += 64

        verdict, _ = checked(problem, tmp_path, wrong)
        assert f"C[{row}, 7]" in verdict.message


@pytest.mark.parametrize("shift", [1, 16, 64, 128, 256])
def test_rows_of_another_tile_of_a_group_are_found(shift: int, tmp_path: Path) -> None:
    def shifted(reference: Any, operands: dict[str, Any]) -> None:
        right(reference, operands)
        operands["c"][-100:] = operands["c"][-100 - shift : -shift].clone()

    assert not checked(moe(M, "gate_up"), tmp_path, shifted)[0].passed


def right(reference: Any, operands: dict[str, Any]) -> None:
    operands["c"].copy_(reference(operands))


@pytest.mark.parametrize("problem", TALL, ids=lambda problem: problem.name)
def test_a_right_tall_product_passes_with_the_reference_of_one_period(problem: GemmProblem, tmp_path: Path) -> None:
    period = period_of(problem, get_op(problem.op))
    assert period < problem.M
    verdict, rows = checked(problem, tmp_path, right)
    assert verdict.passed, verdict.message
    assert rows == period


@pytest.mark.parametrize("row", [0, 2048, M - 1])
def test_one_wrong_element_of_any_period_is_found(row: int, tmp_path: Path) -> None:
    def wrong(reference: Any, operands: dict[str, Any]) -> None:
        right(reference, operands)
        operands["c"][row, 7] += 1

    verdict, _ = checked(replace(TALL[0], activation="none"), tmp_path, wrong)
    assert not verdict.passed
    assert f"C[{row}, 7]" in verdict.message


@pytest.mark.parametrize("shift", [1, 16, 48, 128, 144, 256, 4096, 8192])
def test_rows_of_another_tile_are_found(shift: int, tmp_path: Path) -> None:
    """A kernel whose last rows are computed from the rows `shift` before them."""

    def shifted(reference: Any, operands: dict[str, Any]) -> None:
        right(reference, operands)
        operands["c"][-100:] = operands["c"][-100 - shift : -shift].clone()

    assert not checked(replace(TALL[0], activation="none"), tmp_path, shifted)[0].passed


def test_short_products_and_batches_do_not_repeat_rows() -> None:
    short = GemmProblem(8000, 24, 64)
    batched = GemmProblem(100_000, 24, 64, "batched_a16w16", own=(("batch_size", 4),))
    for problem in (short, batched):
        assert period_of(problem, get_op(problem.op)) == problem.M
