"""Tests of one_order_layers: what its GPU tests compare is of one order, and packed for every M."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from one_order_layers import LAYERS, SIZES, OrderedLayer

from genkern.errors import InvarianceError
from genkern.gemm.problem import GemmProblem
from genkern.packing.m_ranges import gaps
from genkern.packing.rows import rows_of
from genkern.runtime.calls.configuration import STRICT
from genkern.runtime.calls.context import Context


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_layer_has_one_order_and_every_m(layer: OrderedLayer) -> None:
    """All of its rows are packed, and calls are of the problems that they are for."""
    rows = layer.rows()
    found = rows_of(rows, None, False)
    assert not found.left_out
    assert len(found.packed) == len(rows) == len(layer.problems) * len(layer.configs)
    for problem in layer.problems:
        packed = [row for row in found.packed if replace(row.winner.problem, M=1) == problem]
        assert len({row.winner.batch_invariant for row in packed}) == 1
        assert gaps((w.reach.least_m, w.reach.most_m) for row in packed for w in row.wanted) == []
    asked: list[GemmProblem] = []
    context = Context(
        lambda op: [],
        lambda index: None,
        watches=[lambda gpu, each, choice: asked.append(each)],
        batch_invariant=STRICT,
    )
    with pytest.raises(InvarianceError, match="no GPU"):
        layer.calls(context, 64, "cpu")(torch.arange(SIZES[0]))
    assert replace(asked[0], M=1) in layer.problems
