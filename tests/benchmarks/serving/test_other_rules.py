"""Tests of benchmarks/serving/other_rules.py: AITER's padded M, and which tuned M each rule takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.other_rules import by_padding, next_larger, padded_m
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.runtime.bundles.untuned_m import Option, Rule


@given(m=st.integers(1, 20000), n=st.sampled_from([4096, 4097]))
def test_aiters_padding(m: int, n: int) -> None:
    """Padded M is never smaller, is a multiple of its step or a power of two, and is the same for a padded one."""
    fine, coarse = (padded_m(m, n, coarse) for coarse in (False, True))
    assert m <= fine < m + 128
    assert padded_m(fine, n, False) == fine
    assert coarse == 8192 if m > 8192 and n > 4096 else (coarse >= m and coarse & (coarse - 1) == 0)


RULES = {
    by_padding: {1: 16, 15: 16, 40: 64, 65: 128, 100: 128, 129: None},
    next_larger: {1: 16, 15: 16, 17: 64, 65: 128, 129: 128, 256: 128, 257: None},
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: Rule) -> None:
    """Of tuned M = 16, 64 and 128, which each rule takes."""
    winners = [SimpleNamespace(problem=GemmProblem(m, 256, 512)) for m in (16, 64, 128)]
    options = [Option(cast(Result, each), None) for each in winners]
    for m, wanted in RULES[rule].items():
        option = rule(m, options)
        assert (option and option.m) == wanted, m
