"""Mutants of the kernels in Gluon, which only a GPU can judge: each computes wrongly on the stand-in for it.

One that computes the same (a group of tiles that is not cut anyway, a ring that never comes round) would be missed by
any check, and spoil the count of a run on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import pytest
from forms import RINGS
from gluon_cases import assert_exact, product
from gluon_groups import assert_groups_exact, group_product
from long_tests import spread

from benchmarks.checking import mutant_cases
from benchmarks.checking.mutant_cases import Case, Kind, kinds_of
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES
from genkern.ops.op import groups_of

UNITS = 132
PARTS = 3
KINDS = [kind for kind in kinds_of(FAMILIES) if kind.name in RINGS]
# Whole numbers do not show them: what lies between 0 and 1, and sums that 16 bits hold. Nor does the stand-in
# add slots up. Fast sums of so small numbers are exact (tests/kernels/test_full_sums.py has larger ones).
UNSEEN = (
    "activation is another",
    "cast before the sum",
    "a slot is not added",
    "N: the last column of C is not stored",
    mutant_cases.FAST_SUMS,
)


@cache
def cases() -> list[Case]:
    """As on an H200, but in the types that the stand-in has."""
    made = mutant_cases.problem_of

    def problem_of(kind: Kind, op: str, dtype: str, *more: Any) -> GemmProblem:
        return replace(
            made(kind, op, dtype, *more), dtype_c="fp16" if dtype == "fp16" and op != "fused_moe" else "fp32"
        )

    formats = (
        ("a16w16", "fp16", {"bias": True, "activation": "relu"}),
        ("a8w8", "fp8e4m3fn", {}),
        ("a8w8_blockscale", "fp8e4m3fn", {}),
        ("grouped_gemm", "fp16", {"own": (("groups", 2), ("routing", "skewed"))}),
        ("fused_moe", "fp16", {"own": (("experts", 5), ("top_k", 2))}),
    )
    with mock.patch.multiple(mutant_cases, problem_of=problem_of, _FORMATS=formats):
        return [case for case in mutant_cases.mutants(KINDS, "sm_90", True) if case.fault not in UNSEEN]


def test_all_of_them_are_here() -> None:
    """The types change neither kernels nor faults, but for a scale that there is one of."""
    real = mutant_cases.mutants(KINDS, "sm_90", True)
    assert {case.kind for case in cases()} == {case.kind for case in real} == {*RINGS}
    missing = {case.fault for case in real} - {case.fault for case in cases()} - set(UNSEEN)
    assert all(fault.startswith("scale of ") for fault in missing)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_mutant_computes_wrongly(part: int) -> None:
    """Or does what would hang, or race, on a GPU: a part of them for each worker."""
    for case in spread(cases(), 60)[part::PARTS]:
        try:
            judge(case)
        except AssertionError:
            continue
        pytest.fail(f"{case.kind}: {case.fault} computes the same")


def judge(case: Case) -> None:
    """Raise AssertionError for what the stand-in does not let pass."""
    if groups_of(case.problem) is None:
        assert_exact(product(case.problem, case.config, UNITS, seed=1, text=case.text))
    else:
        counts = rows_of_groups(case.problem)
        assert_groups_exact(group_product(case.problem, case.config, UNITS, counts, seed=1, text=case.text))


def rows_of_groups(problem: GemmProblem) -> list[int]:
    """As many as a run on a GPU has."""
    torch, groups = pytest.importorskip("torch"), groups_of(problem)
    assert groups is not None
    ends = groups.values(problem.M, groups.operands(problem.M)[0])
    counts: list[int] = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    return counts
