"""Trees: a walk ends where the splits send it, and arrays in which one ends nowhere are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from genkern.search.guided.trees import Trees

# Tree 0: x <= 1 ? 10 : (y <= 2 ? 20 : 30). Tree 1 has one leaf, of 1.
TREES = Trees(
    np.array("sm_90"),
    np.array(["x", "y"]),
    np.array([[0, 1], [0, 0]], dtype=np.int16),
    np.array([[1.0, 2.0], [0.0, 0.0]], dtype=np.float32),
    np.array([[~0, ~1], [~0, ~0]], dtype=np.int16),
    np.array([[1, ~2], [~0, ~0]], dtype=np.int16),
    np.array([[10.0, 20.0, 30.0], [1.0, 0.0, 0.0]], dtype=np.float32),
)
COLUMNS = {"x": np.array([1.0, 1.5, 2.0]), "y": np.array([9.0, 2.0, 2.5])}


def test_rows_end_in_their_leaves() -> None:
    leaves = TREES.leaves(COLUMNS)
    assert leaves.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert TREES.octaves(leaves).tolist() == [11.0, 21.0, 31.0]


def test_a_feature_that_nobody_gives_is_nought() -> None:
    assert TREES.octaves(TREES.leaves({"x": np.array([5.0])})).tolist() == [21.0]


@pytest.mark.parametrize(
    "change",
    [
        {"feature": np.array([[2, 1], [0, 0]], dtype=np.int16)},
        {"left": np.array([[0, ~1], [~0, ~0]], dtype=np.int16)},
        {"right": np.array([[1, ~3], [~0, ~0]], dtype=np.int16)},
        {"value": np.array([[np.nan, 1, 1], [1, 1, 1]], dtype=np.float32)},
        {"threshold": np.array([[1.0], [0.0]], dtype=np.float32)},
        {"feature": np.array([[0.5, 1], [0, 0]])},
    ],
)
def test_what_leads_nowhere_is_refused(change: dict[str, Any]) -> None:
    assert Trees.of(TREES.arrays()).value.tolist() == TREES.value.tolist()
    with pytest.raises((ValueError, IndexError)):
        Trees.of(replace(TREES, **change).arrays())
