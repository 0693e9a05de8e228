"""Tests of profiling/checking/reads.py: a read beyond an operand is wrong, whatever becomes of what it brought."""

from __future__ import annotations

import pytest
from interpreted import Interpreter
from small_gemms import TILED

from genkern.gemm.problem import GemmProblem

# In the kernel's text, what stands in its place, and where the first read beyond is.
FAULTS = {
    "rows of A beyond M, which are not stored": (
        *("mask=(offs_m[:, None] < M) & (offs_k[None, :] < K - k)", "mask=offs_k[None, :] < K - k"),
        "reads outside A at row 33, column 0",
    ),
    "columns of B beyond N": (
        *("mask=(offs_n[None, :] < N) & (offs_k[:, None] < K - k)", "mask=offs_k[:, None] < K - k"),
        "reads outside B at row 40, column 0",
    ),
    "a bias beyond N": (
        *("bias_ptr + offs_n[None, :], mask=offs_n[None, :] < N, other=0.0", "bias_ptr + offs_n[None, :]"),
        "reads outside bias at",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_read_beyond_an_operand(interpreter: Interpreter, kind: str) -> None:
    """Of results that are masked when they are stored: no element of C is wrong, and a GPU may fault."""
    right, wrong, where = FAULTS[kind]
    problem = GemmProblem(33, 40, 65, bias=True)
    verdict = interpreter.check(problem, TILED, (right, wrong))
    assert not verdict["passed"]
    assert where in verdict["message"]
    assert interpreter.check(problem, TILED)["passed"]
