"""Tests of profiling/same_bits/row_bits.py: whose rows have the same bits in all calls, in every format.

Kernels are stood in for by sums over K element by element, in an order that is said; so bits are those of that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Subject, WorkBuffer
from genkern.profiling.same_bits.row_bits import DIGITS, POOL, RowChecking

torch = pytest.importorskip("torch")

Operands = dict[str, Any]
PLAIN = GemmProblem(40, 32, 64, "a16w16", "fp16", "fp16", "fp32")


def checking(problem: GemmProblem, like: Operands | None = None) -> RowChecking:
    op = get_op(problem.op)
    if like is None:
        types = {"fp16": torch.float16, "fp32": torch.float32}
        like = {each.name: torch.empty(each.tensor_shape, dtype=types[each.dtype]) for each in op.operands(problem)}
        like["b"] = like["b"].mT.contiguous().mT
    return RowChecking(problem, op, like)


def sums(x: Operands, parts: int = 1, backwards: bool = False) -> Any:
    """A @ B in float32, a product at a time in the order of K, in so many parts that are added afterwards."""
    a, b = x["a"].float(), x["b"].float()
    k = a.shape[1]
    places = [range(part * k // parts, (part + 1) * k // parts) for part in range(parts)]
    total = torch.zeros(a.shape[0], b.shape[1])
    for part in places:
        own = torch.zeros_like(total)
        for place in reversed(part) if backwards else part:
            own += a[:, place : place + 1] * b[place]
        total += own
    return total


def subject(kernel: Callable[[Operands], Any], buffers: Sequence[WorkBuffer] = ()) -> Subject:
    return Subject(lambda x: x["c"].copy_(kernel(x)), tuple(buffers))


def test_rows_are_the_same_for_all_m() -> None:
    """Those of the pool have the same bits by kernels of one order, whatever M; and other ones in another order."""
    ones = {m: checking(replace(PLAIN, M=m)).check(subject(sums)).row_bits for m in (1, 3, 40, 100)}
    assert [len(bits) for bits in ones.values()] == [DIGITS, 3 * DIGITS, POOL * DIGITS, POOL * DIGITS]
    assert all(ones[100].startswith(bits) for bits in ones.values())
    split = checking(PLAIN).check(subject(lambda x: sums(x, 2))).row_bits
    assert split != ones[40]
    assert len(split) == len(ones[40])


MUTANTS: dict[str, Callable[[Operands], Any]] = {
    "a split more": lambda x: sums(x, 2),
    "another order": lambda x: sums(x, backwards=True),
    "parts that are rounded": lambda x: sums(x).half(),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_another_order_than_the_references_is_found(name: str) -> None:
    """Which is right for every check of a product, and the same in all calls."""
    rows = checking(PLAIN)
    assert rows.check(subject(sums), subject(lambda x: sums(x))).message == ""
    assert rows.check(subject(MUTANTS[name])).message == ""
    message = rows.check(subject(MUTANTS[name]), subject(sums)).message
    assert message.startswith("rows have other bits than the reference of this order of sums: the first is row ")


def test_an_order_that_hangs_on_the_rows_place_is_found() -> None:
    """Of every second row, and of one that hangs on its neighbour."""

    def by_place(x: Operands) -> Any:
        one, other = sums(x), sums(x, 2)
        one[1::2] = other[1::2]
        return one

    def by_neighbour(x: Operands) -> Any:
        one, other = sums(x), sums(x, 2)
        above = x["a"].float().roll(1, 0)[:, 0] > 0
        return torch.where(above[:, None], one, other)

    for kernel in (by_place, by_neighbour):
        assert "at other positions, beside other rows" in checking(PLAIN).check(subject(kernel)).message


def test_an_order_that_hangs_on_the_call_is_found() -> None:
    """Of one that changes from call to call, and of one that takes sums of the call before."""
    calls = [0]

    def by_call(x: Operands) -> Any:
        calls[0] += 1
        return sums(x, 1 + calls[0] % 2)

    assert "in a second call" in checking(PLAIN).check(subject(by_call)).message

    def by_workspace(x: Operands) -> Any:
        kept = x["workspace"].view(PLAIN.M, PLAIN.N)
        if bool(kept.isnan().all()):
            kept.copy_(sums(x))
        return kept

    buffer = WorkBuffer("workspace", PLAIN.M * PLAIN.N, torch.float32)
    rows = checking(PLAIN)
    original = rows._lane

    def unset(tensors: Operands, what: Subject) -> Operands:
        lane = original(tensors, what)
        if "workspace" in lane:
            lane["workspace"].fill_(float("nan"))
        return lane

    rows._lane = unset  # type: ignore[method-assign]
    assert "beside another call" in rows.check(subject(by_workspace, [buffer])).message


def test_rows_that_share_a_scale_do_not_move() -> None:
    """Nothing is told of them but that calls agree."""
    op = replace(get_op("a16w16"), shared_scale=lambda problem: (2, 1, 1))
    rows = RowChecking(PLAIN, op, checking(PLAIN).like)
    verdict = rows.check(subject(sums))
    assert (verdict.message, verdict.row_bits) == ("", "")
