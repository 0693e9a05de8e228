"""Tests that generated kernels compute the product, under Triton's interpreter: layouts, types, overhangs, splits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from interpreted import Answer, Interpreter
from long_tests import covering
from small_gemms import needs_interpreter, write_module

from genkern.gemm.config import Config
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import worst_row_error

pytestmark = needs_interpreter
LAYOUTS = list(itertools.product((True, False), (True, False)))
SMALL = Config("tiled", 32, 32, 32, 2, 1)
SPLIT = Config("tiled", 32, 16, 32, 3, 4)
TMA = Config("persistent_tma", 32, 32, 32, 2, 1)
TMA_SPECIALIZED = Config("persistent_tma", 32, 16, 32, 2, 1, specialized=1)
TILED_TMA = Config("tiled_tma", 32, 16, 32, 2, 3)
GEMV = Config("gemv", 16, 16, 64, 1, 1)
SKINNY = Config("tiled", 16, 64, 128, 1, 1)
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
    # Grids that 8 XCDs divide, that they do not, and with fewer programs than XCDs; the splits share the order.
    for m, n in ((64, 64), (100, 33), (17, 16), (1, 1)):
        for split in (1, 3):
            config = Config("tiled", 16, 16, 32, 2, split, xcd_remap=1, cache_modifier=".cg" if m == 100 else "none")
            cases.append((a16w16(m, n, 97), config))
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
        cases.append((a16w16(104, 48, k, layout=layout, bias=split > 2), replace(config, reduce="kernel")))
    apart = replace(TILED_TMA, reduce="kernel")
    cases += [
        (a8w8(48, 48, 112, dtype, bias=True), config) for dtype in ("int8", *FP8) for config in (TILED_TMA, apart)
    ]
    cases += [(a16w16(48, 48, 112, dtype), TILED_TMA) for dtype in ("bf16", "fp32")]
    # More rows of tiles than GROUP_SIZE_M, and a last group that is smaller.
    cases += [(a16w16(112, 48, 32), Config("tiled", 16, 16, 16, group, 1)) for group in (1, 3, 64)]
    cases += [(a16w16(112, 48, 32), Config("persistent_tma", 16, 16, 16, 3, 1))]
    # The same text as persistent_tma but for an option that the interpreter ignores.
    cases += [(a16w16(104, 48, 112, layout=layout, bias=True), TMA_SPECIALIZED) for layout in LAYOUTS]
    cases += [(a8w8(48, 48, 112, dtype, bias=True), TMA_SPECIALIZED) for dtype in ("int8", FP8[0])]
    # Several blocks of rows, one that overhangs, and rows that all programs have.
    few = Config("skinny", 4, 16, 64, 1, 2)
    cases += [(a16w16(m, 17, 161), replace(few, BLOCK_SIZE_M=rows)) for m, rows in ((1, 1), (2, 2), (7, 4), (16, 16))]
    summed = Config("tiled", 32, 16, 32, 2, 3, reduce="semaphore")
    for config in (summed, replace(summed, swapped=1), few):
        cases += _split_cases(config)
    swapped = Config("tiled_tma", 16, 32, 32, 2, 3, swapped=1)
    cases += [(a16w16(24, 48, 112, layout=layout, bias=True), swapped) for layout in LAYOUTS]
    cases += [(a16w16(5, 48, 112), replace(swapped, BLOCK_SIZE_M=8, SPLIT_K=split)) for split in (1, 2, 5)]
    cases += [(a8w8(16, 48, 112, dtype, bias=True), swapped) for dtype in ("int8", FP8[0])]
    return cases


def _split_cases(split: Config) -> list[tuple[GemmProblem, Config]]:
    """Cases of a family that takes SPLIT_K: every layout and type, odd sizes, many splits."""
    cases, block = [], split.BLOCK_SIZE_M
    for layout in LAYOUTS:
        cases += [(a16w16(block + 3, 33, 161, layout=layout, bias=True), split)]
        cases += [(a16w16(block, 48, 192, layout=layout), split)]
        cases += [(a8w8(block - 1, 31, 97, "int8", layout=layout, bias=True), split)]
    # No split, one block each, and more splits than blocks of K.
    cases += [(a16w16(7, 19, 97), replace(split, SPLIT_K=splits)) for splits in (1, 2, 4, 5, 16)]
    cases += [(a16w16(1, 1, 1, bias=True), split), (a16w16(5, 32, 100, "fp32", bias=True), split)]
    cases += [(replace(a16w16(5, 32, 100), dtype_c="fp32"), split), (a16w16(5, 32, 112, "bf16"), split)]
    cases += [(a8w8(5, 32, 112, dtype, "fp32", bias=dtype == "int8"), split) for dtype in ("int8", *FP8)]
    return cases


CASES = _cases()


def _traits(case: tuple[GemmProblem, Config]) -> list[tuple[object, ...]]:
    """What each family must be seen with, and the ways in which tiles and splits can end."""
    problem, config = case
    blocks = -(-problem.K // config.BLOCK_SIZE_K)
    each = (
        problem.dtype_a,
        problem.dtype_c,
        (problem.row_major_a, problem.row_major_b),
        problem.bias,
        problem.M % config.BLOCK_SIZE_M > 0,
        problem.N % config.BLOCK_SIZE_N > 0,
        problem.K % config.BLOCK_SIZE_K > 0,
        (config.SPLIT_K > 1, blocks < config.SPLIT_K, blocks % config.SPLIT_K > 0),
        config.xcd_remap,
    )
    return [(traits_of(config).stem, number, trait) for number, trait in enumerate(each)]


def _steps(case: tuple[GemmProblem, Config]) -> int:
    """About what the interpreter has to do."""
    problem, config = case
    tiles = -(-problem.M // config.BLOCK_SIZE_M) * -(-problem.N // config.BLOCK_SIZE_N)
    return 20 + tiles * (3 * config.SPLIT_K + -(-problem.K // config.BLOCK_SIZE_K))


@pytest.mark.parametrize(("problem", "config"), covering(CASES, _traits, _steps), ids=lambda value: value.name)
def test_kernels_compute_the_product(interpreter: Interpreter, problem: GemmProblem, config: Config) -> None:
    """Every element is written and within tolerance, every row within the limit; so does a second call, to the bit.

    Counters are back at zero after the first.
    """
    agrees(problem, interpreter.run(problem, config))


VENDOR_TYPES = [
    *[("a16w16", dtype, dtype) for dtype in ("bf16", "fp16", "fp32")],
    *[("a16w16", "bf16", "fp16"), ("a16w16", "fp32", "bf16")],
    *[("a8w8", "fp8e4m3fn", dtype_c) for dtype_c in ("bf16", "fp16", "fp32")],
]


@pytest.mark.parametrize(("op", "dtype", "dtype_c"), VENDOR_TYPES)
def test_vendor_computes_the_same(tmp_path: Path, op: str, dtype: str, dtype_c: str) -> None:
    """The library's call that configs are compared with does all that they do, into C: bias, activation, C's type."""
    for bias, activation in itertools.product((False, True), ACTIVATIONS):
        problem = GemmProblem(32, 48, 64, op, dtype, dtype, dtype_c, bias=bias, activation=activation)
        generated = generate(problem, [SMALL], "any")
        module = load_module(str(write_module(tmp_path, generated)))
        operands = module.make_operands("cpu")
        operands["c"].fill_(float("nan"))
        assert module.vendor(operands) is operands["c"]
        # Rounded to C's type between GEMM and activation, which a kernel is not.
        limit = 2 * get_op(op).worst_row_limit(problem)
        assert worst_row_error(operands["c"], module.reference(operands)) <= limit


def agrees(problem: GemmProblem, answer: Answer) -> None:
    """What the checks of a run demand, and stricter: not one element outside, and nothing left for the next call."""
    assert answer.error_ratio == 0
    assert not answer.again
    assert answer.worst_row_error <= get_op(problem.op).worst_row_limit(problem)
