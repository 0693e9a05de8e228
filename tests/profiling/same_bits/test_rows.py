"""Tests of profiling/same_bits/rows.py and moved.py: whose rows have the same bits in all calls, in every format.

Kernels are stood in for by sums over K element by element, in an order that is said; so bits are those of that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_gemms import make_module

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Subject, WorkBuffer
from genkern.profiling.same_bits.moved import moved
from genkern.profiling.same_bits.rows import DIGITS, POOL, RowChecking

torch = pytest.importorskip("torch")

Operands = dict[str, Any]
PLAIN = GemmProblem(40, 32, 64, "a16w16", "fp16", "fp16", "fp32")
FP8 = ("fp8e4m3fn", "fp8e4m3fn", "bf16")
BF16 = ("bf16", "bf16", "bf16")
FORMATS = [
    GemmProblem(1, 32, 64),
    GemmProblem(70, 32, 64, row_major_a=False, row_major_b=True, bias=True, activation="gelu"),
    GemmProblem(40, 128, 256, "a8w8", *FP8, own=(("scales", "per_token"),)),
    GemmProblem(40, 128, 256, "a8w8", *FP8, own=(("accumulate", "full"),)),
    GemmProblem(40, 128, 256, "a8w8_blockscale", *FP8),
    GemmProblem(40, 128, 256, "a16w4", "bf16", "int8", "bf16"),
    GemmProblem(40, 128, 256, "batched_a16w16", *BF16, own=(("batch_size", 3),)),
    GemmProblem(40, 128, 256, "grouped_gemm", *BF16, own=(("groups", 4),)),
    GemmProblem(40, 128, 256, "grouped_gemm", *BF16, own=(("capacity", 40), ("groups", 4))),
    GemmProblem(40, 128, 256, "grouped_gemm", *FP8, own=(("groups", 4), ("scales", "blocks"))),
    GemmProblem(
        *(40, 128, 256, "fused_moe", *BF16),
        activation="silu",
        own=(("experts", 4), ("stage", "gate_up"), ("top_k", 2)),
    ),
    GemmProblem(40, 128, 256, "fused_moe", *BF16, own=(("experts", 4), ("top_k", 2))),
]


def module_of(folder: Path, problem: GemmProblem) -> Any:
    return make_module(folder, problem, [Config("tiled", 16, 16, 32)], "sm_90")[1]


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


@pytest.mark.parametrize("problem", FORMATS, ids=lambda problem: f"{problem.op}_{problem.M}_{len(problem.own)}")
def test_every_formats_rows_can_move(problem: GemmProblem, tmp_path: Path) -> None:
    """What its reference makes of rows elsewhere, beside others, is what it made of them before; most are others then.

    Where rows go to experts, tokens share theirs with others than before.
    """
    module = module_of(tmp_path, problem)
    like = module.make_operands("cpu", 0, "randn")
    # An order of additions that is not the point here does not show.
    kernel = subject(lambda x: module.reference(x).double().mul(32).round().div(32).to(x["c"].dtype))
    rows = checking(problem, like)
    verdict = rows.check(kernel)
    assert verdict.message == ""
    assert verdict.rows > 0
    grouped = problem.op in ("grouped_gemm", "fused_moe")
    assert len(verdict.row_bits) == (0 if grouped else min(problem.M, POOL) * DIGITS)
    before = rows._tensors
    other = moved(problem, rows.op, before, rows._filled(1), 1)
    assert other is not None
    assert (len(other.before) > 0) == (len(other.after) > 0)
    if problem.M > 1:
        assert len(other.before) < before["c"].shape[-2]
        changed = {name for name, tensor in before.items() if not same(other.tensors[name], tensor)}
        assert "a" in changed
        assert "b" not in changed
        if problem.own and problem.own[0][0] in ("experts", "groups"):
            assert "ends" in changed


def same(one: Any, other: Any) -> bool:
    bits = [torch.empty_like(each).copy_(each).contiguous().view(torch.uint8) for each in (one, other)]
    return bool((bits[0] == bits[1]).all())


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
    assert message.startswith("a row has other bits by the reference of its order: the first in place ")


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
        assert "elsewhere, beside other rows" in checking(PLAIN).check(subject(kernel)).message


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
