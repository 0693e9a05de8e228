"""Trees: boosted regression trees as arrays, which NumPy evaluates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trees:
    """Regression trees whose leaves' values add up.

    `names` are the features by their numbers. Of tree t, node i goes left where feature `feature[t, i]` is at most
    `threshold[t, i]`; `left` and `right` have the next node, or ~leaf. Trees are padded to the longest. A tree of one
    leaf has a first node whose both sides are leaf 0.
    """

    names: tuple[str, ...]
    feature: npt.NDArray[np.int16]
    threshold: npt.NDArray[np.float64]
    left: npt.NDArray[np.int16]
    right: npt.NDArray[np.int16]
    value: npt.NDArray[np.float64]

    def matrix(self, columns: Mapping[str, Numbers]) -> Numbers:
        """[features, rows], those that `columns` lacks as 0."""
        rows = len(next(iter(columns.values()), np.zeros(0)))
        return np.array([columns.get(name, np.zeros(rows)) for name in self.names])

    def leaves(self, columns: Mapping[str, Numbers]) -> npt.NDArray[np.int16]:
        """[trees, rows]: the leaf of each tree in which each row ends."""
        x = self.matrix(columns)
        rows = np.arange(x.shape[1])
        ends = np.empty((len(self.feature), x.shape[1]), dtype=np.int16)
        for tree, (feature, threshold, left, right) in enumerate(
            zip(self.feature, self.threshold, self.left, self.right, strict=True)
        ):
            node = np.zeros(x.shape[1], dtype=np.intp)
            inner = rows
            end = ends[tree]
            while inner.size:
                at = node[inner]
                goes = np.where(x[feature[at], inner] <= threshold[at], left[at], right[at])
                done = goes < 0
                end[inner[done]] = ~goes[done]
                inner = inner[~done]
                node[inner] = goes[~done]
        return ends

    def values(self, leaves: npt.NDArray[np.int16]) -> Numbers:
        """[rows]: the sums of the leaves' values."""
        return self.value[np.arange(len(leaves))[:, None], leaves].sum(axis=0)
