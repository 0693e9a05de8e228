"""a8w8_bpreshuffle: like a8w8, with shuffled weights (genkern.ops.shuffle)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import a8w8
from genkern.ops.fields import own_values
from genkern.ops.shuffle import LAYOUTS, exact_shuffled, layout_field, refuse_shuffled, shared_shuffled, shuffled


@dataclass(frozen=True)
class A8W8Shuffled(a8w8.A8W8):
    """The fields of a8w8, and the layout of the weights."""

    layout: str = layout_field()


def layout(problem: GemmProblem) -> tuple[int, int]:
    """Return the layout of the problem's weights."""
    return LAYOUTS[own_values(A8W8Shuffled, problem).layout]


def plain(problem: GemmProblem) -> GemmProblem:
    """Return the same problem without shuffled weights."""
    return replace(problem, op="a8w8", own=tuple(pair for pair in problem.own if pair[0] != "layout"))


def _refuse(problem: GemmProblem, arch: str) -> str:
    return a8w8.OP.refuse(problem, arch) or refuse_shuffled(problem, layout(problem))


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    a, b, *others = a8w8.OP.operands(plain(problem))
    return (a, shuffled(b, layout(problem)), *others)


OP = replace(
    a8w8.OP,
    name="a8w8_bpreshuffle",
    folder="a8w8_bpreshuffle",
    by_types=False,
    fields=A8W8Shuffled,
    refuse=_refuse,
    operands=_operands,
    exact_inputs=exact_shuffled,
    shared_scale=lambda problem: shared_shuffled((1, 1, 1), layout(problem)),
    no_vendor=lambda problem: "the library has no product of shuffled weights",
)
