"""a8w8_blockscale_bpreshuffle: like a8w8_blockscale, with shuffled weights (genkern.ops.shuffle)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from genkern.gemm.columns import Refusals
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import a8w8_blockscale
from genkern.ops.fields import own_values
from genkern.ops.shuffle import LAYOUTS, exact_shuffled, layout_field, refuse_shuffled, shared_shuffled, shuffled


@dataclass(frozen=True)
class BlockScaleShuffled(a8w8_blockscale.BlockScale):
    """The fields of a8w8_blockscale, and the layout of the weights."""

    layout: str = layout_field()


def layout(problem: GemmProblem) -> tuple[int, int]:
    """Return the layout of the problem's weights."""
    return LAYOUTS[own_values(BlockScaleShuffled, problem).layout]


def plain(problem: GemmProblem) -> GemmProblem:
    """Return the same problem without shuffled weights."""
    return replace(problem, op="a8w8_blockscale", own=tuple(pair for pair in problem.own if pair[0] != "layout"))


def _refuse(problem: GemmProblem, arch: str) -> str:
    return a8w8_blockscale.OP.refuse(problem, arch) or refuse_shuffled(problem, layout(problem))


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    a, b, *others = a8w8_blockscale.OP.operands(plain(problem))
    return (a, shuffled(b, layout(problem)), *others)


def _legal(problem: GemmProblem, configs: ConfigTable) -> Refusals:
    yield from a8w8_blockscale.legal(plain(problem), configs)


OP = replace(
    a8w8_blockscale.OP,
    name="a8w8_blockscale_bpreshuffle",
    folder="a8w8_blockscale_bpreshuffle",
    fields=BlockScaleShuffled,
    refuse=_refuse,
    operands=_operands,
    # Gluon families do not load shuffled weights.
    promotes=False,
    exact_inputs=exact_shuffled,
    no_vendor=lambda problem: "the library has no product of shuffled weights",
    legal=_legal,
    shared_scale=lambda problem: shared_shuffled(a8w8_blockscale.OP.shared_scale(plain(problem)), layout(problem)),
)
