"""Tests of profiling/checking/alphabet.py: sums stay exact, and results visible, for every type and K."""

from __future__ import annotations

from dataclasses import replace

import pytest

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.alphabet import LARGEST, choose_alphabet, scales_inside, sum_limit

TYPES = [
    *(("a16w16", t, t, c) for t in ("fp16", "bf16", "fp32") for c in ("fp16", "bf16", "fp32")),
    *(("a8w8", t, t, c) for t in ("int8", "fp8e4m3fn", "fp8e5m2", "fp8e4m3fnuz") for c in ("fp16", "bf16", "fp32")),
]
SIZES = (1, 2, 7, 16, 64, 513, 1000, 4097, 8192, 8193, 28672, 128256)


def operands(types: tuple[str, str, str, str], K: int) -> tuple[Operand, ...]:
    op, a, b, c = types
    return get_op(op).operands(GemmProblem(40, 24, K, op, a, b, c))


@pytest.mark.parametrize("types", TYPES, ids="_".join)
def test_no_sum_of_magnitudes_leaves_the_accumulator(types: tuple[str, str, str, str]) -> None:
    """Not even the largest: so any order, split and subset of the additions is exact."""
    for K in SIZES:
        alphabet = choose_alphabet(operands(types, K))
        limit = sum_limit(operands(types, K))
        assert 1 <= alphabet.largest <= LARGEST
        assert -(-K // alphabet.parts) * alphabet.largest**2 <= limit
        assert -(-K // alphabet.drifting_parts) * alphabet.drifting**2 <= limit
        assert alphabet.parts <= max(4, -(-K // limit))


def test_most_results_show_every_product() -> None:
    """A result is a number that C's type holds to the unit, 99 times of 100, up to K = 28672 in bf16."""
    for K in SIZES[:-1]:
        for c, limit in (("bf16", 256), ("fp16", 2048)):
            alphabet = choose_alphabet(operands(("a16w16", "bf16", "bf16", c), K))
            n = alphabet.largest
            spread = (K / alphabet.parts) ** 0.5 * (n + 1) * (2 * n + 1) / 6
            assert 2.45 * spread <= limit, (K, c)


def test_scales_inside_the_sum_cost_bits() -> None:
    """One scale for 128 of K stands inside the sum; one per tensor, row or column does not."""
    a, b, c, *scales = operands(("a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"), 512)
    rows = replace(scales[0], shape=(40, 1)), replace(scales[1], shape=(1, 24))
    blocks = replace(scales[0], shape=(40, 4), in_step=True), replace(scales[1], shape=(1, 4), in_step=True)
    assert scales_inside((a, b, c, *scales)) == ()
    assert scales_inside((a, b, c, *rows)) == ()
    assert scales_inside((a, b, c, *blocks)) == blocks
    # Eight bits are what 512 products of up to 7 leave: 128 of them with one scale do not.
    assert choose_alphabet((a, b, c, *scales)).drifting == 4
    assert choose_alphabet((a, b, c, *blocks)).drifting == LARGEST
    assert choose_alphabet((a, b, c, *blocks), 4).drifting == 4
    long = operands(("a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"), 28672)[:3]
    assert choose_alphabet((*long, *blocks)).drifting_parts == 1
