"""Tests of profiling/same_bits/moved_rows.py: in every format rows go elsewhere, beside others, and C with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_gemms import make_module
from test_row_bits import checking, subject

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.profiling.same_bits.moved_rows import moved
from genkern.profiling.same_bits.row_bits import DIGITS, POOL

torch = pytest.importorskip("torch")

FP8 = ("fp8e4m3fn", "fp8e4m3fn", "bf16")
BF16 = ("bf16", "bf16", "bf16")
FORMATS = [
    GemmProblem(1, 32, 64),
    GemmProblem(70, 32, 64, row_major_a=False, row_major_b=True, bias=True, activation="gelu"),
    GemmProblem(40, 128, 256, "a8w8", *FP8, own=(("scales", "per_token"),)),
    GemmProblem(40, 128, 256, "a8w8", *FP8, own=(("accumulate", "full"),)),
    GemmProblem(40, 128, 256, "a8w8_blockscale", *FP8),
    GemmProblem(40, 128, 256, "a16w4", "bf16", "int8", "bf16"),
    GemmProblem(40, 128, 256, "batched_a16w16", *BF16, own=(("batch_size", 3),)),
    GemmProblem(40, 128, 256, "grouped_gemm", *BF16, own=(("groups", 4),)),
    GemmProblem(40, 128, 256, "grouped_gemm", *BF16, own=(("capacity", 40), ("groups", 4))),
    GemmProblem(40, 128, 256, "grouped_gemm", *FP8, own=(("groups", 4), ("scales", "blocks"))),
    GemmProblem(
        *(40, 128, 256, "fused_moe", *BF16),
        activation="silu",
        own=(("experts", 4), ("stage", "gate_up"), ("top_k", 2)),
    ),
    GemmProblem(40, 128, 256, "fused_moe", *BF16, own=(("experts", 4), ("top_k", 2))),
]


def module_of(folder: Path, problem: GemmProblem) -> Any:
    return make_module(folder, problem, [Config("tiled", 16, 16, 32)], "sm_90")[1]


@pytest.mark.parametrize("problem", FORMATS, ids=lambda problem: f"{problem.op}_{problem.M}_{len(problem.own)}")
def test_every_formats_rows_can_move(problem: GemmProblem, tmp_path: Path) -> None:
    """What its reference makes of rows elsewhere, beside others, is what it made of them before; most are others then.

    Where rows go to experts, tokens share theirs with others than before.
    """
    module = module_of(tmp_path, problem)
    like = module.make_operands("cpu", 0, "randn")
    # An order of additions that is not the point here does not show.
    kernel = subject(lambda x: module.reference(x).double().mul(32).round().div(32).to(x["c"].dtype))
    rows = checking(problem, like)
    verdict = rows.check(kernel)
    assert verdict.message == ""
    assert verdict.rows > 0
    grouped = problem.op in ("grouped_gemm", "fused_moe")
    assert len(verdict.row_bits) == (0 if grouped else min(problem.M, POOL) * DIGITS)
    before = rows._tensors
    other = moved(problem, rows.op, before, rows._filled(1), 1)
    assert other is not None
    assert (len(other.before) > 0) == (len(other.after) > 0)
    if problem.M > 1:
        assert len(other.before) < before["c"].shape[-2]
        changed = {name for name, tensor in before.items() if not same(other.tensors[name], tensor)}
        assert "a" in changed
        assert "b" not in changed
        if problem.own and problem.own[0][0] in ("experts", "groups"):
            assert "ends" in changed


def same(one: Any, other: Any) -> bool:
    bits = [torch.empty_like(each).copy_(each).contiguous().view(torch.uint8) for each in (one, other)]
    return bool((bits[0] == bits[1]).all())
