"""Posterior: what a size's own times say of the configs that have none.

A Gaussian process (Rasmussen and Williams, 2006, chapter 2) over the errors of the model: its mean beforehand is the
model's prediction, and configs err alike as far as they are alike. How large errors are at this size, and the level of
its times, are estimated with them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
# In octaves (log2 of time): the model's usual error, the part of it that configs of one kind share, and the noise of a
# first measurement. The usual error counts as so many measured ones when it is estimated. Chosen by replays of the
# recorded sizes (results/recorded), each by a model that was not trained on it.
_ERROR, _KIND_ERROR, _NOISE, _USUAL = 0.17, 0.10, 0.015, 4.0
_OWN = _ERROR**2 + _KIND_ERROR**2
# Standard deviations.
_FAR = 8.5


class Posterior:
    """Times in octaves of the rows of one size, given those that are measured.

    `prior` [rows] are the model's predictions, up to a constant. `alike(row)` [rows] says how alike the error of each
    row is to that of `row`, from 0 to 1, which is its own. `kind` [rows] numbers their kinds.

    A time more is a row more of the Cholesky factor, and of what follows from it (chapter 2, algorithm 2.1): no matrix
    is inverted, and sums have one order on every machine, which libraries of linear algebra do not promise.
    """

    def __init__(self, prior: Numbers, alike: Callable[[int], Numbers], kind: npt.NDArray[np.int64]) -> None:
        self._prior, self._alike, self._kind = prior, alike, kind
        # Of rows that were asked for and not added since.
        self._shared: dict[int, Numbers] = {}
        # By measured row: what it tells of every row, [rows], its error and the constant 1 where the rows before it
        # have told what they can.
        self._told: Numbers = np.empty((16, len(prior)))
        self._errors: list[float] = []
        self._ones: list[float] = []
        # [rows]: of errors and of the constant what is told of each row, and how much of its variance.
        self._of_errors, self._of_ones, self._known = (np.zeros(len(prior)) for _ in range(3))

    def add(self, row: int, octaves: float) -> None:
        """The row's measured time, log2 of microseconds."""
        count = len(self._errors)
        if count == len(self._told):
            self._told = np.concatenate([self._told, np.empty_like(self._told)])
        shared = self._shared.pop(row, None)
        shared = self._shared_with(row) if shared is None else shared
        before = self._told[:count]
        of_row = before[:, row].tolist()
        own = shared[row] + _NOISE**2
        for told, share in zip(before, of_row, strict=True):
            shared -= share * told
            own -= share * share
        size = math.sqrt(own)
        self._told[count] = new = shared / size
        error = (octaves - float(self._prior[row]) - math.fsum(map(operator.mul, of_row, self._errors))) / size
        one = (1.0 - math.fsum(map(operator.mul, of_row, self._ones))) / size
        self._errors.append(error)
        self._ones.append(one)
        self._of_errors += error * new
        self._of_ones += one * new
        self._known += new * new

    def correlated(self, row: int) -> Numbers:
        """[rows] how far each one's error is that of `row` beforehand, from 0 to 1."""
        shared = self._shared[row] = self._shared_with(row)
        correlated: Numbers = shared / _OWN
        return correlated

    def _shared_with(self, row: int) -> Numbers:
        shared: Numbers = _ERROR**2 * self._alike(row) + _KIND_ERROR**2 * (self._kind == self._kind[row])
        return shared

    def predicted(self) -> tuple[Numbers, Numbers]:
        """[rows] mean and standard deviation, in octaves; before any time, up to a constant."""
        if not self._errors:
            return self._prior, np.full(len(self._prior), math.sqrt(_OWN))
        # The level by generalised least squares, and the scale of errors by what is left.
        certainty = math.fsum(one * one for one in self._ones)
        level = math.fsum(map(operator.mul, self._ones, self._errors)) / certainty
        left = math.fsum((error - level * one) ** 2 for error, one in zip(self._errors, self._ones, strict=True))
        scale = (_USUAL + left) / (_USUAL + len(self._errors) - 1)
        mean = self._prior + level + self._of_errors - level * self._of_ones
        of_level = (1.0 - self._of_ones) ** 2 / certainty
        return mean, np.sqrt(np.maximum(_OWN - self._known + of_level, 1e-8) * scale)


def expected_gain(best: float, mean: Numbers, deviation: Numbers) -> Numbers:
    """[rows] by how many octaves each is expected to be faster than `best`, where it is not slower (Jones, Schonlau and
    Welch, 1998)."""
    z = (best - mean) / deviation
    # Farther out it is 0 or 1 to the last bit.
    below, near = (z > 0).astype(np.float64), np.flatnonzero(np.abs(z) < _FAR)
    below[near] = [0.5 * (1.0 + math.erf(each / math.sqrt(2.0))) for each in z[near].tolist()]
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    gain: Numbers = deviation * (z * below + density)
    return gain
