"""Trees: boosted regression trees as arrays, which NumPy evaluates; their file holds no code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int16]
# Fewer rows than this walk down all trees at once, more rows one tree after the other; either is faster in its case.
FEW_ROWS = 64
_TYPES = {"arch": np.str_, "names": np.str_, "feature": np.int16, "left": np.int16, "right": np.int16}


@dataclass(frozen=True, eq=False)
class Trees:
    """Regression trees. The values of a row's leaves add up to log2 of time, up to a constant that depends on the size.

    arch: [] the architecture of the training data
    names: [features] the features that splits use
    feature, threshold: [trees, nodes] node i of tree t goes left if feature `feature[t, i]` is at most
        `threshold[t, i]`
    left, right: [trees, nodes] the next node, or ~leaf
    value: [trees, leaves] values of the leaves

    Trees are padded to the size of the largest one. In a tree of a single leaf, node 0 has leaf 0 on both sides.
    """

    arch: npt.NDArray[np.str_]
    names: npt.NDArray[np.str_]
    feature: Places
    threshold: npt.NDArray[np.float32]
    left: Places
    right: Places
    value: npt.NDArray[np.float32]

    def leaves(self, columns: Mapping[str, Numbers]) -> Places:
        """Return the leaf [trees, rows] of each tree in which each row ends. Features that `columns` lacks are 0."""
        x = matrix_of(columns, self.names.tolist())
        count = x.shape[1]
        if count < FEW_ROWS:
            return self._leaves_of_few(x)
        ends = np.zeros((len(self.feature), count), dtype=np.int16)
        everything = np.arange(count)
        trees = zip(self.feature, self.threshold, self.left, self.right, ends, strict=True)
        for feature, threshold, left, right, end in trees:
            node, inner = np.zeros(count, dtype=np.intp), everything
            while inner.size:
                at = node[inner]
                goes = np.where(x[feature[at], inner] <= threshold[at], left[at], right[at])
                has_ended = goes < 0
                end[inner[has_ended]] = ~goes[has_ended]
                inner = inner[~has_ended]
                node[inner] = goes[~has_ended]
        return ends

    def _leaves_of_few(self, x: npt.NDArray[np.float32]) -> Places:
        tree, row = np.ogrid[: len(self.feature), : x.shape[1]]
        goes = np.zeros((len(self.feature), x.shape[1]), dtype=np.int16)
        while (walks := goes >= 0).any():
            node = np.maximum(goes, 0)
            is_left = x[self.feature[tree, node], row] <= self.threshold[tree, node]
            after = np.where(is_left, self.left[tree, node], self.right[tree, node])
            goes = np.where(walks, after, goes)
        return ~goes

    def octaves(self, leaves: Places) -> Numbers:
        """Return the sum [rows] of the values of these leaves [trees, rows]."""
        values: Numbers = np.take_along_axis(self.value, leaves.astype(np.intp), axis=1).sum(axis=0, dtype=np.float64)
        return values

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the file, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Trees:
        """Return the trees of a file's arrays. Raises ValueError, KeyError or IndexError for invalid arrays."""
        trees = cls(**{each.name: arrays[each.name] for each in fields(cls)})
        trees._check()
        return trees

    def _check(self) -> None:
        """Raise ValueError for arrays in which a walk would not end, or would leave the arrays."""
        trees, nodes = self.feature.shape
        shaped = {(trees, nodes)} == {each.shape for each in (self.threshold, self.left, self.right)}
        if (
            not shaped
            or self.value.ndim != 2
            or len(self.value) != trees
            or (self.arch.ndim, self.names.ndim) != (0, 1)
        ):
            raise ValueError("its arrays do not belong together")
        for each in fields(self):
            if not np.issubdtype(getattr(self, each.name).dtype, _TYPES.get(each.name, np.float32)):
                raise ValueError(f"{each.name} has another type")
        if self.feature.min() < 0 or self.feature.max() >= len(self.names):
            raise ValueError("a split asks for a feature that it does not name")
        after = np.arange(nodes)
        for side in (self.left, self.right):
            # Each node leads only to later nodes, so every walk ends.
            if ((side >= 0) & ((side <= after) | (side >= nodes))).any() or (~side >= self.value.shape[1]).any():
                raise ValueError("a node leads nowhere")
        if not (np.isfinite(self.value).all() and np.isfinite(self.threshold).all()):
            raise ValueError("a value is no number")


def matrix_of(columns: Mapping[str, Numbers], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the features [names, rows]; a feature that `columns` lacks is 0. `columns` must not be empty."""
    nought = np.zeros(len(next(iter(columns.values()))))
    return np.array([columns.get(name, nought) for name in names], dtype=np.float32)
