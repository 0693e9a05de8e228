"""Posterior: what a size's own times say of the configs that have none.

A Gaussian process over the errors of the model: configs that the trees send to the same leaves err alike. Its prior is
the model's; the size's own level, which no model of relative times knows, is estimated with it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
# Of times in octaves (log2): the model's error, the part of it that all configs of a kind share, and what a first
# measurement's noise adds. Fitted on the recorded sizes, each held out of the model that predicts it.
ERROR, KIND_ERROR, NOISE = 0.16, 0.10, 0.015


class Posterior:
    """Times in octaves of the rows of one size, given what is measured of them.

    `prior` [rows] are the model's predictions, up to a constant; `alike(row)` says for every row how alike its error is
    to that of `row`, 1 for itself; `kind` [rows] numbers the kinds.
    """

    def __init__(self, prior: Numbers, leaves: npt.NDArray[np.int16], kind: npt.NDArray[np.int64]) -> None:
        self._prior = prior
        self._leaves = leaves
        self._kind = kind
        self._rows: list[int] = []
        self._times: list[float] = []
        self._alike: list[Numbers] = []

    def add(self, row: int, octaves: float) -> None:
        """The row's measured time, log2 of microseconds."""
        self._rows.append(row)
        self._times.append(octaves)
        same = (self._leaves == self._leaves[:, row, None]).mean(axis=0)
        self._alike.append(ERROR**2 * same + KIND_ERROR**2 * (self._kind == self._kind[row]))

    @property
    def best(self) -> float:
        """The best measured time, in octaves; infinite before there is one."""
        return min(self._times, default=math.inf)

    def predicted(self) -> tuple[Numbers, Numbers]:
        """[rows] the mean, and the standard deviation, in octaves."""
        own = ERROR**2 + KIND_ERROR**2
        if not self._rows:
            return self._prior, np.full(len(self._prior), math.sqrt(own))
        across = np.array(self._alike)
        rows = np.array(self._rows)
        inverse = np.linalg.inv(across[:, rows] + NOISE**2 * np.eye(len(rows)))
        off = np.array(self._times) - self._prior[rows]
        # The level by generalised least squares.
        weights = inverse.sum(axis=0)
        level = float(weights @ off / weights.sum())
        mean = self._prior + level + across.T @ (inverse @ (off - level))
        spent = np.einsum("or,or->r", across, inverse @ across)
        rest = (1.0 - weights @ across) ** 2 / weights.sum()
        return mean, np.sqrt(np.maximum(own - spent + rest, 1e-8))
