"""Trees of one size: what is the same of all its configs decides the same in each walk, and is decided once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from genkern.search.guided.trees import Numbers, Trees, matrix_of


def passed(trees: Trees, columns: Mapping[str, Numbers]) -> Trees:
    """Trees in which these rows end in the same leaves after fewer steps: splits by a feature that is the same in all
    rows are gone. `columns` are as in `Trees.leaves`.
    """
    x = matrix_of(columns, trees.names.tolist())
    first, same = x[:, 0], (x == x[:, :1]).all(axis=1)
    count, nodes = trees.feature.shape
    every = np.arange(count)
    goes = np.where(first[trees.feature] <= trees.threshold, trees.left, trees.right)
    # By node where a walk that comes to it really goes: to itself, or past it, to a later one or ~leaf.
    real = np.broadcast_to(np.arange(nodes, dtype=np.int16), (count, nodes)).copy()
    for node in reversed(range(nodes)):
        after = goes[:, node]
        past = np.where(after < 0, after, real[every, np.maximum(after, 0)])
        real[:, node] = np.where(same[trees.feature[:, node]], past, node)
    left, right = (
        np.where(side < 0, side, np.take_along_axis(real, np.maximum(side, 0), axis=1))
        for side in (trees.left, trees.right)
    )
    # A walk begins at the first node, which stands for where it really goes.
    start = real[:, 0]
    at = every, np.maximum(start, 0)
    feature, threshold = trees.feature.copy(), trees.threshold.copy()
    feature[:, 0], threshold[:, 0] = feature[at], threshold[at]
    left[:, 0], right[:, 0] = (np.where(start < 0, start, side[at]) for side in (left, right))
    return replace(trees, feature=feature, threshold=threshold, left=left, right=right)
