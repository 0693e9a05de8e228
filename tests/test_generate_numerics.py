"""Tests that generated kernels compute the product, under Triton's interpreter: layouts, types, overhangs, splits."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_gemms import needs_interpreter

from genkern.config import Config
from genkern.generate import generate
from genkern.op import get_op
from genkern.problem import GemmProblem

pytestmark = needs_interpreter
ROOT = Path(__file__).parents[1]
LAYOUTS = list(itertools.product((True, False), (True, False)))
SMALL = Config("tiled", 32, 32, 32, 2, 1)
SPLIT = Config("tiled", 32, 16, 32, 3, 4)
TMA = Config("persistent_tma", 32, 32, 32, 2, 1)
TILED_TMA = Config("tiled_tma", 32, 16, 32, 2, 3)
GEMV = Config("gemv", 16, 16, 64, 1, 1)
SKINNY = Config("tiled", 16, 64, 128, 1, 1)
# Programs of the persistent kernels.
UNITS = 2
FP8 = ("fp8e4m3fn", "fp8e5m2", "fp8e4m3fnuz", "fp8e5m2fnuz")


def a16w16(
    m: int, n: int, k: int, dtype: str = "fp16", layout: tuple[bool, bool] = (True, False), bias: bool = False
) -> GemmProblem:
    """A 16-bit (or fp32) problem with outputs of the same type."""
    return GemmProblem(m, n, k, "a16w16", dtype, dtype, dtype, *layout, bias)


def a8w8(
    m: int,
    n: int,
    k: int,
    dtype: str,
    dtype_c: str = "bf16",
    layout: tuple[bool, bool] = (True, False),
    bias: bool = False,
) -> GemmProblem:
    """An 8-bit problem."""
    return GemmProblem(m, n, k, "a8w8", dtype, dtype, dtype_c, *layout, bias)


def _cases() -> list[tuple[GemmProblem, Config]]:
    cases = []
    for layout in LAYOUTS:
        cases += [(a16w16(100, 50, 97, layout=layout), SMALL), (a16w16(100, 50, 97, layout=layout, bias=True), SPLIT)]
        cases += [(a16w16(104, 48, 112, layout=layout, bias=True), TMA), (a16w16(64, 32, 96, layout=layout), SMALL)]
        cases += [
            (a8w8(48, 33, 97, "int8", layout=layout, bias=True), SPLIT),
            (a8w8(33, 48, 64, "fp8e4m3fn", layout=layout), SMALL),
        ]
    # Odd sizes: skinny and just over a block; K one, two and four past a multiple of 16, as in 4097, 4098, 4100.
    for m, k in itertools.product((1, 17, 100), (4097, 1026, 516)):
        cases.append((a16w16(m, 64, k), SKINNY))
    cases += [
        (a16w16(1, 1, 1), SMALL),
        (a16w16(1, 1, 1, bias=True), SPLIT),
        (a16w16(65, 1, 33), SMALL),
        (a16w16(1, 100, 31), SPLIT),
    ]
    # Splits: uneven ones, more splits than blocks of K, and a last split that gets no block.
    for split, k in ((2, 97), (3, 160), (16, 100), (4, 32 * 5), (7, 32)):
        cases.append((a16w16(17, 32, k), Config("tiled", 16, 32, 32, 1, split)))
    cases += [
        (a16w16(33, 64, 100, dtype, bias=True), config) for dtype in ("bf16", "fp32") for config in (SMALL, SPLIT)
    ]
    cases += [(a16w16(32, 64, 96, dtype), TMA) for dtype in ("bf16", "fp32")]
    for dtype in ("int8", *FP8):
        cases += [(a8w8(33, 48, 112, dtype, bias=True), config) for config in (SMALL, SPLIT, TMA)]
    cases += [
        (a8w8(33, 48, 112, dtype, dtype_c), SMALL) for dtype in ("int8", "fp8e4m3fn") for dtype_c in ("fp16", "fp32")
    ]
    # One row of A: N and K that blocks divide, and that they do not.
    for n, k in ((32, 128), (33, 97), (1, 4097)):
        cases += [(a16w16(1, n, k, dtype, bias=True), GEMV) for dtype in ("fp16", "bf16", "fp32")]
        cases += [(a8w8(1, n, k, dtype), GEMV) for dtype in ("int8", "fp8e4m3fn")]
    # Splits that the last program of a tile adds up; more of them than blocks of K in the last two.
    for layout, (split, k) in itertools.product(LAYOUTS, ((1, 112), (2, 160), (3, 112), (5, 96), (16, 32))):
        config = Config("tiled_tma", 32, 16, 32, 2, split)
        cases.append((a16w16(104, 48, k, layout=layout, bias=split > 2), config))
    cases += [(a8w8(48, 48, 112, dtype, bias=True), TILED_TMA) for dtype in ("int8", *FP8)]
    cases += [(a16w16(48, 48, 112, dtype), TILED_TMA) for dtype in ("bf16", "fp32")]
    # More rows of tiles than GROUP_SIZE_M, and a last group that is smaller.
    cases += [(a16w16(112, 48, 32), Config("tiled", 16, 16, 16, group, 1)) for group in (1, 3, 64)]
    cases += [(a16w16(112, 48, 32), Config("persistent_tma", 16, 16, 16, 3, 1))]
    return cases + _split_cases("tiled_semaphore") + _split_cases("tiled_atomic")


def _split_cases(family: str) -> list[tuple[GemmProblem, Config]]:
    """Cases of a family that splits K in one kernel: every layout and type, odd sizes, many splits."""
    cases = []
    split = Config(family, 32, 16, 32, 2, 3)
    for layout in LAYOUTS:
        cases += [(a16w16(67, 33, 161, layout=layout, bias=True), split), (a16w16(64, 48, 160, layout=layout), split)]
        cases += [(a8w8(35, 31, 97, "int8", layout=layout, bias=True), split)]
    # No split, one block each, and more splits than blocks of K.
    cases += [(a16w16(17, 37, 97), replace(split, SPLIT_K=splits)) for splits in (1, 2, 4, 5, 16)]
    cases += [(a16w16(1, 1, 1, bias=True), split), (a16w16(33, 48, 100, "fp32", bias=True), split)]
    cases += [(replace(a16w16(33, 48, 100), dtype_c="fp32"), split), (a16w16(33, 48, 112, "bf16"), split)]
    cases += [(a8w8(33, 48, 112, dtype, "fp32", bias=dtype == "int8"), split) for dtype in ("int8", *FP8)]
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What every case computed: [error ratio, worst row error, what a second call did], or a traceback."""
    folder = tmp_path_factory.mktemp("interpreted")
    argument = []
    for number, (problem, config) in enumerate(CASES):
        path = folder / f"case_{number}.py"
        path.write_text(generate(problem, [config], "any").text, encoding="utf-8")
        argument.append([str(path), config.name, UNITS])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_cases.py"))],
        input=json.dumps(argument),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0].name}-{CASES[n][1].name}")
def test_kernels_compute_the_product(answers: list[object], number: int) -> None:
    """Every element is written and within tolerance, every row within the op's limit; a second call agrees to the bit.

    Counters are back at zero after the first.
    """
    problem, _ = CASES[number]
    answer = answers[number]
    assert isinstance(answer, list), answer
    error_ratio, worst_row_error, again = answer
    assert error_ratio == 0
    assert not again
    assert worst_row_error <= get_op(problem.op).worst_row_limit(problem)
