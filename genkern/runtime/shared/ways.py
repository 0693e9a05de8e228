"""Way: how layers that share an input are called, so that their rows have the same bits in every batch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from genkern.runtime.context import Context
from genkern.runtime.shared.tuned_groups import sums_of


class Way(Enum):
    """As one product or one by one. Where bits may not depend on M it is the bundle alone that decides, for every M."""

    # Whichever is faster: bits are the same, or nobody asks for it.
    EITHER = "either"
    TOGETHER = "together"
    APART = "apart"


def way_of(weights: Sequence[Any], has_bias: bool, context: Context) -> Way:
    """The way of layers with these weights [N, K], in the mode of now.

    Where calls must be batch invariant, layers that have rows of one order of sums each for itself can be called
    alone, whatever is asked of them (gradients, for example): they are, unless their product as one has the same order.
    Else that product is called, if it has an order, and nothing in its place.
    """
    if not context.mode.is_on:
        return Way.EITHER
    together = sums_of(weights, has_bias, context)
    if not together:
        return Way.APART
    alone = [[sums_of([weight], has_bias, context, row_major) for row_major in (True, False)] for weight in weights]
    if not all(of_rows for of_rows, _ in alone):
        return Way.TOGETHER
    return Way.EITHER if {each for pair in alone for each in pair} - {""} == {together} else Way.APART


def as_rows(x: Any) -> Any:
    """x [..., K], or a copy of it, row by row: a product is of one problem then, however x lies."""
    return x if x.dim() == 0 or x.stride(-1) == 1 else x.contiguous()
