"""Passed: walks are shorter where features are the same in all rows, and end where they did."""

from __future__ import annotations

import numpy as np
import pytest

from genkern.search.guided.specialized_trees import specialized
from genkern.search.guided.trees import Trees


def random_trees(count: int, depth: int, features: int) -> Trees:
    """Full binary trees with random splits."""
    random = np.random.default_rng(3)
    nodes = 2**depth - 1
    child = 2 * np.arange(nodes) + 1
    # Below the last nodes are leaves, numbered from the left.
    left, right = (np.where(side < nodes, side, ~(side - nodes)).astype(np.int16) for side in (child, child + 1))
    of_all = np.tile(left, (count, 1)), np.tile(right, (count, 1))
    feature = random.integers(0, features, (count, nodes)).astype(np.int16)
    threshold = random.integers(0, 9, (count, nodes)).astype(np.float32)
    value = random.normal(size=(count, nodes + 1)).astype(np.float32)
    names = np.array([f"f{place}" for place in range(features)])
    return Trees(np.array("sm_90"), names, feature, threshold, *of_all, value)


@pytest.mark.parametrize("constant", [0, 3, 6])
def test_rows_end_where_they_did(constant: int) -> None:
    """Whether no feature, some of them or all are the same; one that nobody gives is 0 in every row."""
    trees, random = random_trees(40, 6, 7), np.random.default_rng(4)
    columns = {f"f{place}": random.integers(0, 9, 50).astype(np.float64) for place in range(6)}
    columns |= {f"f{place}": np.full(50, 4.0) for place in range(constant)}
    shorter = specialized(trees, columns)
    assert (shorter.leaves(columns) == trees.leaves(columns)).all()
    # A tree of one leaf has it on both sides.
    split_by = {f"f{place}" for place in shorter.feature[:, 0][shorter.left[:, 0] != shorter.right[:, 0]].tolist()}
    assert not split_by & {"f6", *(f"f{place}" for place in range(constant))}
