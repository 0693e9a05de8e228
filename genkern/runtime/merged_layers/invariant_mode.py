"""Way: how layers that share an input are called so that their results are batch-invariant."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from genkern.runtime.calls.context import Context
from genkern.runtime.merged_layers.tuned_groups import sums_of


class LayerMode(Enum):
    """Whether layers are computed as one product or one by one.

    If calls must be batch-invariant, the choice depends on the bundles only, not on M.
    """

    # Whichever is faster: both give the same bits, or calls need not be batch-invariant.
    EITHER = "either"
    TOGETHER = "together"
    APART = "apart"


def layer_mode_of(weights: Sequence[Any], has_bias: bool, context: Context) -> LayerMode:
    """Return the way of layers with these weights [N, K] in the current mode.

    If calls must be batch-invariant and each layer has winners with one order of sums, the layers are called one by
    one, since that works for every call (with gradients, for example), unless their common product has the same order.
    Otherwise they are called only as that product, if it has an order.
    """
    if not context.mode.is_on:
        return LayerMode.EITHER
    together = sums_of(weights, has_bias, context)
    if not together:
        return LayerMode.APART
    alone = [[sums_of([weight], has_bias, context, row_major) for row_major in (True, False)] for weight in weights]
    if not all(of_rows for of_rows, _ in alone):
        return LayerMode.TOGETHER
    return LayerMode.EITHER if {each for pair in alone for each in pair} - {""} == {together} else LayerMode.APART


def as_rows(x: Any) -> Any:
    """Return x [..., K] with contiguous rows, copied if necessary: all calls of a layer then have one problem."""
    return x if x.dim() == 0 or x.stride(-1) == 1 else x.contiguous()
