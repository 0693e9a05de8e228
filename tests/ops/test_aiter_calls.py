"""Tests of ops/aiter_calls.py and the formats' aiter.py, against a stub with AITER's signatures and demands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from aiter_stub import LARGER, ONE_SPLIT, SPLIT, installed
from lt_problems import expected_of, operands_of

from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import AiterCall, aiter_calls, is_built
from genkern.ops.shuffle import plain_weight
from genkern.timing.libraries import is_call

FP8 = {"dtype_a": "fp8e4m3fnuz", "dtype_b": "fp8e4m3fnuz"}
PLAIN = GemmProblem(16, 128, 256)
ROWS = GemmProblem(16, 32, 64, op="a8w8", own=(("scales", "per_token"),), **FP8)
SHUFFLED = replace(ROWS, op="a8w8_bpreshuffle", own=(("layout", "n16k16"), ("scales", "per_token")))
BLOCKS = GemmProblem(16, 256, 512, op="a8w8_blockscale", **FP8)
SHUFFLED_BLOCKS = replace(BLOCKS, op="a8w8_blockscale_bpreshuffle", own=(("layout", "n16k16"),))
# Two tiles on 304 compute units allow 152 splits; AITER takes 16, and K of 256 has four steps of 64.
ASSEMBLY = [f"aiter asm {of}" for of in (f"1 2 {SPLIT}", f"1 3 {SPLIT}", f"1 4 {SPLIT}", f"2 1 {ONE_SPLIT}")]


@pytest.fixture
def aiter(tmp_path: Path) -> Any:
    return installed(tmp_path)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (PLAIN, [*ASSEMBLY, f"aiter asm 3 1 {LARGER}", "aiter tuned skinny"]),
        (replace(PLAIN, bias=True), [*ASSEMBLY, f"aiter asm 3 1 {LARGER}", "aiter tuned skinny"]),
        (ROWS, ["aiter ck"]),
        (SHUFFLED, ["aiter ck"]),
        (BLOCKS, ["aiter ck"]),
        (SHUFFLED_BLOCKS, ["aiter ck"]),
    ],
    ids=lambda of: of.op if isinstance(of, GemmProblem) else "",
)
def test_calls_compute_the_problem(problem: GemmProblem, names: list[str], aiter: Any) -> None:
    """With operands as AITER has them, into C, under names that results take; what this aiter lacks is left out."""
    operands = operands_of(problem)
    calls = aiter_calls(aiter, problem)
    assert [*calls] == names
    plain = operands
    if "shuffle" in problem.op:
        plain = {**operands, "b": plain_weight(operands["b"], problem, (16, 16))}
    expected = expected_of(problem, plain)
    for name in names:
        if problem.bias and "tuned" in name:
            continue
        assert is_call(name)
        assert is_built(aiter, calls[name])
        operands["c"].zero_()
        calls[name].launch(operands)
        assert torch.equal(operands["c"], expected.to(operands["c"].dtype)), name


def test_what_aiter_does_not_take_has_no_call(aiter: Any) -> None:
    """Other layouts, activations, scales, blocks; formats without a file of their own; an aiter of another day."""
    for problem in (
        replace(PLAIN, row_major_b=True),
        replace(PLAIN, activation="relu"),
        replace(ROWS, own=(("scales", "per_tensor"),)),
        replace(SHUFFLED, own=(("layout", "n32k16"), ("scales", "per_token"))),
        replace(BLOCKS, own=(("block_k", 64),)),
        replace(BLOCKS, bias=True),
        replace(PLAIN, op="a16w8", dtype_b="int8"),
    ):
        assert aiter_calls(aiter, problem) == {}
    old = SimpleNamespace(gemm_a16w16_asm=1, jit=SimpleNamespace())
    assert aiter_calls(SimpleNamespace(), PLAIN) == aiter_calls(old, PLAIN) == aiter_calls(old, ROWS) == {}
    assert not is_built(old, AiterCall(print, "module"))
    # Kernels of whole tiles of 64 columns, and no more tiles than there are counters for.
    assert [*aiter_calls(aiter, replace(PLAIN, N=96))] == ["aiter tuned skinny"]
    many = aiter_calls(aiter, replace(PLAIN, M=2048, N=2048))
    assert f"aiter asm 2 1 {ONE_SPLIT}" in many
    assert not any(SPLIT in name for name in many)


def test_what_the_table_says_races_once(tmp_path: Path) -> None:
    """hipBLASLt, PyTorch and the assembly kernels race by themselves."""
    for libtype in ("torch", "hipblaslt", "asm", "unheard"):
        assert not any("tuned" in name for name in aiter_calls(installed(tmp_path, libtype), PLAIN))
    assert is_built(SimpleNamespace(), aiter_calls(installed(tmp_path, "triton"), PLAIN)["aiter tuned triton"])
