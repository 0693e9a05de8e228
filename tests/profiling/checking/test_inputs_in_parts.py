"""Tests of profiling/checking/inputs.py where matrices are made some rows at a time."""

from __future__ import annotations

from typing import Any

import pytest

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking import inputs
from genkern.profiling.checking.alphabet import choose_alphabet
from genkern.profiling.checking.inputs import Round, fill
from genkern.profiling.checking.verdict import Checking, Subject

torch = pytest.importorskip("torch")
LAYOUTS = [(True, False), (False, True), (True, True), (False, False)]


def filled(problem: GemmProblem, round_: Round, **more: Any) -> dict[str, Any]:
    operands = get_op(problem.op).operands(problem)
    made = {}
    for x in operands:
        stored = torch.empty(x.stored_shape, dtype=getattr(torch, DTYPES[x.dtype].torch))
        made[x.name] = stored if x.row_major else stored.transpose(-1, -2)
    fill(made, operands, choose_alphabet(operands), round_, few=False, seed=3, **more)
    return made


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_parts_have_one_division_of_k(layout: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A is zero in the columns where all at once has it so, B nowhere; partial sums go up and come down again."""
    problem = GemmProblem(40, 24, 28672, row_major_a=layout[0], row_major_b=layout[1])
    whole = filled(problem, Round("exact", 1))
    monkeypatch.setattr(inputs, "_AT_ONCE", 40 * 97)
    parts, again = filled(problem, Round("exact", 1)), filled(problem, Round("exact", 1))
    assert all(torch.equal(parts[name], again[name]) for name in ("a", "b"))
    assert torch.equal(parts["a"] == 0, whole["a"] == 0)
    assert 0 < (parts["a"] == 0).float().mean() < 1
    assert parts["b"].all()
    # Each row has its own numbers, wherever a part begins.
    assert len(torch.unique(parts["a"].float(), dim=0)) == 40
    assert len(torch.unique(parts["b"].float().T, dim=0)) == 24
    drifting = filled(problem, Round("layout"))
    sums = drifting["a"].double() @ drifting["b"].double()
    half = drifting["a"][:, : 28672 // 2].double() @ drifting["b"][: 28672 // 2].double()
    assert (half > 4 * sums.abs()).float().mean() > 0.9


@pytest.mark.parametrize("op", ["a16w16", "batched_a16w16"])
def test_a_check_in_parts(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes what is right, in every round, and finds one product that is missing."""
    monkeypatch.setattr(inputs, "_AT_ONCE", 1000)
    own = (("batch_size", 3),) if op != "a16w16" else ()
    problem = GemmProblem(33, 40, 130, op, own=own)
    like = {x.name: torch.empty(0, dtype=torch.bfloat16) for x in get_op(op).operands(problem)}
    product = lambda x: x["a"].float() @ x["b"].float()  # noqa: E731
    checking = Checking(problem, get_op(op), "sm_90", product, like)

    def without_last(x: dict[str, Any]) -> None:
        x["c"].copy_(x["a"][..., :-1].float() @ x["b"][..., :-1, :].float())

    right = checking.check(Subject(lambda x: x["c"].copy_(product(x))))
    assert right.passed, right.message
    assert right.rounds == ("exact", "layout", "random")
    assert not checking.check(Subject(without_last)).passed
