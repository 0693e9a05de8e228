"""Tests of genkern/tuning/invariant/group.py: groups of sizes, which orders are tried, and which one is chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, VENDOR_WINS, Check
from genkern.result.result import Proof, Result
from genkern.tuning.invariant.group import (
    LIBRARY,
    Chosen,
    called_us,
    choice,
    contenders,
    groups_of,
    parse_weights,
)

ONE, FEW, MANY = GROUP = tuple(GemmProblem(m, 4096, 4096) for m in (1, 16, 4096))
WHOLE, PARTS, OTHER = "wgmma k16", "wgmma k16; 2 parts of 2048", "mma k16"


def winner(problem: GemmProblem, us: float, bits: str = "", **values: object) -> Result:
    check = Check("tiled", True, 0.0, 0.0, problem.size, "gpu", row_bits=bits) if bits else None
    made = Result(problem, Config("tiled", 64, 64, 64), duration_us=us, time_source="cudagraph", check=Proof.of(check))
    return replace(made, **values)  # type: ignore[arg-type]


def found(*times: float) -> dict[GemmProblem, Result]:
    return {problem: winner(problem, us) for problem, us in zip(GROUP, times, strict=False)}


def test_groups_differ_in_m_alone() -> None:
    """Whatever else differs makes another group: sides, types, bias, layout, a format's own fields."""
    others = [
        replace(ONE, N=2048),
        replace(ONE, K=2048),
        replace(ONE, dtype_c="fp32"),
        replace(ONE, bias=True),
        replace(ONE, row_major_b=True),
        replace(ONE, op="batched_a16w16", own=(("batch_size", 3),)),
    ]
    assert groups_of([MANY, *others, ONE, FEW]) == [GROUP, *((each,) for each in others)]


def test_weights() -> None:
    """M:WEIGHT, each M once; what is not so is told in one line."""
    assert parse_weights("1:4,64:0.5") == {1: 4.0, 64: 0.5}
    for text in ("", "1", "1:", "x:1", "0:1", "1:-1", "1:nan", "1:inf", "1:2,1:3", "1:1e9", "1:0,2:0"):
        with pytest.raises(InputError, match=r"^--m_weights: "):
            parse_weights(text)


def test_orders_are_tried_that_may_be_the_least() -> None:
    """By the times that are known, an order's unknown ones being slower than the best; the library's always."""
    known = {ONE: {PARTS: 10.0, WHOLE: 10.5, "": 9.9}, FEW: {PARTS: 10.0}, MANY: {WHOLE: 100.0, OTHER: 300.0}}
    assert contenders(known, {}) == [WHOLE]
    assert contenders(known, {MANY.M: 0.0}) == [PARTS]
    assert contenders(known, {MANY.M: 0.0}, library=WHOLE) == [PARTS, WHOLE]
    assert contenders(known, {}, library=WHOLE) == [WHOLE]
    assert contenders({problem: {"": 1.0} for problem in GROUP}, {}) == []
    # What is known to be slower, or impossible, is not tried.
    few = {ONE: {PARTS: 10.0}, FEW: {WHOLE: 10.0}}
    assert contenders(few, {}, unknown=lambda problem, order: 1.0 if order == WHOLE else math.inf) == [WHOLE]
    assert contenders(few, {}, unknown=lambda problem, order: math.inf) == []


def test_the_least_total_is_chosen() -> None:
    """Of all M, by their weights; every winner says that it is of the order."""
    orders = {WHOLE: found(12, 14, 100), PARTS: found(10, 10, 130)}
    chosen = choice(GROUP, orders, {})
    assert isinstance(chosen, Chosen)
    assert (chosen.order, chosen.total_us) == (WHOLE, 126.0)
    assert all(one.batch_invariant for one in chosen.winners.values())
    assert [*chosen.winners] == [*GROUP]
    often = choice(GROUP, orders, {1: 20.0})
    assert isinstance(often, Chosen)
    assert (often.order, often.total_us) == (PARTS, 340.0)


def test_near_the_least_the_librarys_order_is_chosen() -> None:
    """A total that is as good as the same; further off it is chosen where it is asked for only."""
    orders = {WHOLE: found(10, 10, 100.3), PARTS: found(10, 10, 100)}
    assert choice(GROUP, orders, {}).order == PARTS  # type: ignore[union-attr]
    assert choice(GROUP, orders, {}, library=WHOLE).order == WHOLE  # type: ignore[union-attr]
    orders[WHOLE] = found(20, 10, 100)
    assert choice(GROUP, orders, {}, library=WHOLE).order == PARTS  # type: ignore[union-attr]
    assert choice(GROUP, orders, {}, library=WHOLE, kind=LIBRARY).order == WHOLE  # type: ignore[union-attr]
    assert "--sums least" in str(choice(GROUP, orders, {}, kind=LIBRARY))
    assert "no order" in str(choice(GROUP, orders, {}, library=OTHER, kind=LIBRARY))


def test_an_order_without_a_winner_for_every_m_is_none() -> None:
    """However fast it is for the others."""
    orders = {WHOLE: found(10, 10, 100), PARTS: found(1, 1)}
    assert choice(GROUP, orders, {}).order == WHOLE  # type: ignore[union-attr]
    assert choice(GROUP, {PARTS: found(1, 1)}, {}) == (
        f"no order of sums has a winner for every M: {PARTS} has no winner for M = 4096"
    )


def test_other_bits_of_a_row_refute_an_order() -> None:
    """The rows that are the same for all M have the same bits by all winners, as far as each has them."""
    bits = {ONE: "aa", FEW: "aabb", MANY: "aabb"}
    same = {problem: winner(problem, 10, bits[problem]) for problem in GROUP}
    assert isinstance(choice(GROUP, {WHOLE: same}, {}), Chosen)
    for problem in GROUP:
        other = {**same, problem: winner(problem, 10, bits[problem].replace("a", "c"))}
        assert "have other bits" in str(choice(GROUP, {WHOLE: other}, {}))


def test_what_is_called_counts() -> None:
    """The library's time where it is called."""
    own = winner(ONE, 10, vendor_us=9.0, choice=CONFIG_WINS)
    assert (called_us(own), called_us(replace(own, choice=VENDOR_WINS))) == (10.0, 9.0)
