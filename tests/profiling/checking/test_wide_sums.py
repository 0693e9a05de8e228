"""Tests of profiling/checking/wide_sums.py: a sum of few bits is found where a problem asks for full ones."""

from __future__ import annotations

from typing import Any

import pytest
from few_bit_sums import few_bit_sum, full_sum

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_fast, as_full
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Checking, Subject, Verdict
from genkern.profiling.checking.wide_sums import of_a, of_b, shows_wide_sums

torch = pytest.importorskip("torch")

FP8 = "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"
PER_TOKEN = (("scales", "per_token"),)
FULL = [
    as_full(GemmProblem(4, 8, 384, *FP8)),
    as_full(GemmProblem(1, 5, 1000, *FP8, own=PER_TOKEN)),
    as_full(GemmProblem(4, 6, 1024, *FP8, bias=True, activation="relu")),
    as_full(GemmProblem(3, 8, 512, "a8w8", "fp8e5m2", "fp8e4m3fn", "fp32")),
    as_full(GemmProblem(6, 10, 640, *FP8, activation="gelu")),
]


def check(problem: GemmProblem, product: Any) -> Verdict:
    """The verdict on a product by `product(a, b)`, on an architecture that keeps few bits."""
    op = get_op(problem.op)
    like = {x.name: torch.empty(0, dtype=getattr(torch, DTYPES[x.dtype].torch)) for x in op.operands(problem)}

    def finished(x: dict[str, Any], c: Any) -> Any:
        c = c.double() * x["scale_a"].double() * x["scale_b"].double()
        c = (c + x["bias"].double() if problem.bias else c).float()
        return c if problem.activation == "none" else getattr(torch.nn.functional, problem.activation)(c)

    def launch(x: dict[str, Any]) -> None:
        x["c"].copy_(finished(x, product(x["a"], x["b"])))

    def reference(x: dict[str, Any]) -> Any:
        return finished(x, x["a"].double() @ x["b"].double())

    return Checking(problem, op, "sm_90", reference, like).check(Subject(launch))


@pytest.mark.parametrize("problem", FULL, ids=lambda problem: problem.name)
def test_full_sums_pass_and_fast_ones_do_not(problem: GemmProblem) -> None:
    """The model of the matrix unit, promoted every 128, 64 and 32 of K, and all along K; float32 passes as well."""
    for every in (128, 32):
        verdict = check(problem, lambda a, b, every=every: full_sum(a, b, every))
        assert verdict.passed, verdict.message
        assert verdict.rounds == ("exact", "layout", "sums", "random")
    assert check(problem, lambda a, b: a.float() @ b.float()).passed
    verdict = check(problem, few_bit_sum)
    assert not verdict.passed
    assert verdict.message.startswith("exact inputs that need float32 sums: C[")


@pytest.mark.parametrize("problem", FULL, ids=lambda problem: problem.name)
def test_either_sum_is_right_for_a_fast_problem(problem: GemmProblem) -> None:
    for product in (few_bit_sum, full_sum):
        verdict = check(as_fast(problem), product)
        assert verdict.passed, verdict.message
        assert verdict.rounds == ("exact", "layout", "random")


@pytest.mark.parametrize("splits", [2, 3, 4])
@pytest.mark.parametrize("apart", [False, True], ids=["in runs", "in turns"])
def test_fast_sums_of_parts_of_k_are_found(splits: int, apart: bool) -> None:
    """However K-blocks are shared, as long as somebody adds up several; promoted ones pass."""
    problem = as_full(GemmProblem(1, 8, 2048, *FP8))

    def product(a: Any, b: Any, of_part: Any) -> Any:
        block = torch.arange(2048) // 128
        part = block % splits if apart else block * splits // 16
        return sum(of_part(a[:, part == number], b[part == number]) for number in range(splits))

    assert check(problem, lambda a, b: product(a, b, full_sum)).passed
    assert not check(problem, lambda a, b: product(a, b, few_bit_sum)).passed


def test_numbers_are_those_of_fp8_and_large_blocks_cancel() -> None:
    problem = as_full(GemmProblem(3, 64, 1100, *FP8))
    a, b, *_ = operands = get_op("a8w8").operands(problem)
    assert shows_wide_sums(operands)
    numbers = [make("cpu", each, torch.Generator().manual_seed(1)).float() for make, each in ((of_a, a), (of_b, b))]
    for number, operand in zip(numbers, (a, b), strict=True):
        assert number.shape == operand.shape
        assert torch.equal(number.to(torch.float8_e4m3fn).float(), number)
        assert torch.equal(number.to(torch.float8_e5m2).float(), number)
    blocks = numbers[1][:1024].view(8, 128, 64)
    is_large = blocks.abs().amin(1) >= 64
    assert torch.equal(is_large, blocks.abs().amax(1) >= 64)
    assert bool((is_large.sum(0) % 2 == 0).all())
    assert bool(((blocks * is_large[:, None]).sum(0) == 0).all())
    # Between the two of a pair there is something in every other column at least.
    assert bool((is_large[0, ::2] & ~is_large[1, ::2]).all())


def test_short_sums_show_nothing() -> None:
    """Two blocks: nothing can be added between a number and what cancels it."""
    operands = get_op("a8w8").operands(GemmProblem(3, 64, 383, *FP8))
    assert not shows_wide_sums(operands)
    of_fnuz = "a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz", "bf16"
    assert not shows_wide_sums(get_op("a8w8").operands(GemmProblem(3, 64, 4096, *of_fnuz)))
