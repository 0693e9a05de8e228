"""Tests of profiling/checking/interpret.py: right kernels of every interpreted form pass, over sizes and types."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms import FORMS, made
from interpreted import INTERPRETED, Interpreter, fitted
from long_tests import repeats
from small_gemms import SEMAPHORE, TILED, make_module

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.profiling.checking.interpret import module_subject

pytest.importorskip("torch")
pytest.importorskip("numpy")

FP8 = "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"
INT8 = "a8w8", "int8", "int8", "fp16"
# What is left of 513, 1000, 4097, 5000 and of primes beside whole blocks.
PROBLEMS = [
    GemmProblem(33, 40, 65),
    GemmProblem(1, 97, 131, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"),
    GemmProblem(37, 1, 200, bias=True, activation="gelu", dtype_c="fp32"),
    GemmProblem(17, 61, 1, activation="relu", row_major_a=False),
    GemmProblem(40, 24, 113, *FP8, bias=True),
    GemmProblem(19, 72, 129, *INT8, row_major_b=True, activation="silu"),
    GemmProblem(48, 64, 128, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32"),
    GemmProblem(35, 48, 96, *FP8, own=(("scales", "per_token"),), bias=True),
    GemmProblem(20, 150, 300, "a8w8_blockscale", *FP8[1:]),
]
BLOCKS = {"gemv": (1, 16, 128, 1), "skinny": (4, 64, 128, 1)}
CONFIGS = [
    made(stem, *BLOCKS.get(stem, (32, 32, 32, 4)), 3 if FORMS[stem].splits_k else 1, 4, 2) for stem in INTERPRETED
]
# Each form and each problem at least once.
CASES = [
    (config, PROBLEMS[(n + 2 * m) % len(PROBLEMS)]) for n, config in enumerate(CONFIGS) for m in range(repeats(1, 2))
]


@pytest.mark.parametrize(("config", "problem"), CASES, ids=lambda x: x.name)
def test_no_false_alarm(interpreter: Interpreter, config: Config, problem: GemmProblem) -> None:
    """Split or not, with workspaces, counters and atomics; as slices of larger matrices too where they are taken."""
    verdict = interpreter.check(fitted(problem, config), config)
    assert verdict["message"] == ""
    assert verdict["passed"]
    assert {"exact", "random"} <= set(verdict["rounds"])
    assert "layout" in verdict["rounds"] or config.family == "gemv"


def test_buffers_are_what_the_module_says(tmp_path: Path) -> None:
    """Its sizes and types, from no device; only counters begin at zero."""
    problem = GemmProblem(48, 96, 512)
    _, module = make_module(tmp_path, problem, [SEMAPHORE, TILED], "sm_90")
    elements, counters = module.workspace_elements(module.CONFIGS[SEMAPHORE.name], 8)
    buffers = {x.name: x for x in module_subject(module, SEMAPHORE.name, 8).buffers}
    assert buffers["workspace"].elements == elements
    # A kernel that takes counters has 16 bytes of them at least.
    assert buffers["counters"].elements == max(counters, 4)
    assert [name for name, x in buffers.items() if x.zero] == ["counters"]
    assert {x.elements for x in module_subject(module, TILED.name, 8).buffers} == {4}


def test_a_sum_of_the_call_before_is_found(interpreter: Interpreter) -> None:
    """In company alone: a call that finds its own sums of before in its slots is right."""
    config, problem = Config("tiled", 32, 32, 32, 4, 3, 4, 2), GemmProblem(33, 40, 65)
    masked = "mask=(offs_m[:, None] < M) & (offs_n[None, :] < N)"
    kept = f"kept = tl.load(partial_ptrs, {masked})\n    acc = tl.where(kept == kept, kept, acc)\n"
    store = f"tl.store(partial_ptrs, acc, {masked})"
    verdict = interpreter.check(problem, config, (store, f"{kept}    {store}"))
    assert verdict["message"].startswith("exact inputs: calls in a row: C[")
