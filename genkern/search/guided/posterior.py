"""Posterior: what a size's own times say of the configs that have none.

A Gaussian process (Rasmussen and Williams, 2006, chapter 2) over the errors of the model: its mean beforehand is the
model's prediction, and configs err alike as far as they are alike. How large errors are at this size, and the level of
its times, are estimated with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
# In octaves (log2 of time): the model's usual error, the part of it that configs of one kind share, and the noise of a
# first measurement. The usual error counts as so many measured ones when it is estimated. Chosen by replays of the
# recorded sizes (results/recorded), each by a model that was not trained on it.
_ERROR, _KIND_ERROR, _NOISE, _USUAL = 0.16, 0.10, 0.015, 4.0
_OWN = _ERROR**2 + _KIND_ERROR**2


class Posterior:
    """Times in octaves of the rows of one size, given those that are measured.

    `prior` [rows] are the model's predictions, up to a constant. `alike(row)` [rows] says how alike the error of each
    row is to that of `row`, from 0 to 1, which is its own. `kind` [rows] numbers their kinds.
    """

    def __init__(self, prior: Numbers, alike: Callable[[int], Numbers], kind: npt.NDArray[np.int64]) -> None:
        self._prior, self._alike, self._kind = prior, alike, kind
        self._rows: list[int] = []
        self._octaves: list[float] = []
        self._shared: list[Numbers] = []

    def add(self, row: int, octaves: float) -> None:
        """The row's measured time, log2 of microseconds."""
        self._rows.append(row)
        self._octaves.append(octaves)
        self._shared.append(_ERROR**2 * self._alike(row) + _KIND_ERROR**2 * (self._kind == self._kind[row]))

    def predicted(self) -> tuple[Numbers, Numbers]:
        """[rows] mean and standard deviation, in octaves; before any time, up to a constant."""
        if not self._rows:
            return self._prior, np.full(len(self._prior), math.sqrt(_OWN))
        shared, rows = np.array(self._shared), np.array(self._rows)
        inverse = np.linalg.inv(shared[:, rows] + _NOISE**2 * np.eye(len(rows)))
        errors = np.array(self._octaves) - self._prior[rows]
        # The level by generalised least squares, and the scale of errors by what is left.
        weights = inverse.sum(axis=0)
        level = float(weights @ errors / weights.sum())
        left = errors - level
        scale = (_USUAL + float(left @ inverse @ left)) / (_USUAL + len(rows) - 1)
        mean = self._prior + level + shared.T @ (inverse @ left)
        known = np.einsum("mr,mr->r", shared, inverse @ shared)
        of_level = (1.0 - weights @ shared) ** 2 / weights.sum()
        return mean, np.sqrt(np.maximum(_OWN - known + of_level, 1e-8) * scale)


def expected_gain(best: float, mean: Numbers, deviation: Numbers) -> Numbers:
    """[rows] by how many octaves each is expected to be faster than `best`, where it is not slower (Jones, Schonlau and
    Welch, 1998)."""
    z = (best - mean) / deviation
    below = 0.5 * (1.0 + np.array([math.erf(each / math.sqrt(2.0)) for each in z.tolist()]))
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    gain: Numbers = deviation * (z * below + density)
    return gain
