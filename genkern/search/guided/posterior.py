"""Posterior: corrects the model's predictions for a size with the times that were measured there.

A Gaussian process (Rasmussen and Williams, 2006, chapter 2) over the errors of the model: its prior mean is the model's
prediction, and its covariance grows with the similarity of configs. The scale of the errors at this size, and the
constant by which the size's times differ from the predictions, are estimated too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
# Standard deviations in octaves (log2 of time): an error of the model that similar configs share, a further error that
# all configs of one kind share, and the noise of a first measurement. _USUAL is the weight of these prior values, as a
# number of measurements, when the scale of the errors is estimated. Chosen by replays of the recorded sizes
# (results/recorded), each with a model that was not trained on it.
_ERROR, _KIND_ERROR, _NOISE, _USUAL = 0.17, 0.10, 0.015, 4.0
_OWN = _ERROR**2 + _KIND_ERROR**2
# Number of standard deviations beyond which the normal distribution function is 0 or 1.
_FAR = 8.5


class Posterior:
    """The distribution of the times of one size's rows, in octaves, given the measured times.

    prior: [rows] the model's predictions, up to a constant
    alike: `alike(row)` returns the similarity [rows] of each row's error to the error of `row`, from 0 to 1 (its own)
    kind: [rows] number of the row's kind

    Each measured time adds a row to the Cholesky factor and to the vectors that follow from it (chapter 2, algorithm
    2.1). No matrix is inverted, and sums have the same order on every machine, which BLAS does not guarantee.
    """

    def __init__(self, prior: Numbers, alike: Callable[[int], Numbers], kind: npt.NDArray[np.int64]) -> None:
        self._prior, self._alike, self._kind = prior, alike, kind
        # Covariances with a row that `correlated` has computed, until the row is added.
        self._shared: dict[int, Numbers] = {}
        # For each measured row: its row [rows] of the Cholesky factor, extended to all rows, and the entries of its
        # error and of the constant 1 after forward substitution.
        self._told: Numbers = np.empty((16, len(prior)))
        self._errors: list[float] = []
        self._ones: list[float] = []
        # [rows]: posterior means of the errors and of the constant 1, and the variance that the measurements explain.
        self._of_errors, self._of_ones, self._known = (np.zeros(len(prior)) for _ in range(3))

    def add(self, row: int, octaves: float) -> None:
        """Add the measured time of a row, log2 of microseconds."""
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
        """Return the prior correlation [rows] of each row's error with the error of `row`, from 0 to 1."""
        shared = self._shared[row] = self._shared_with(row)
        correlated: Numbers = shared / _OWN
        return correlated

    def _shared_with(self, row: int) -> Numbers:
        shared: Numbers = _ERROR**2 * self._alike(row) + _KIND_ERROR**2 * (self._kind == self._kind[row])
        return shared

    def predicted(self) -> tuple[Numbers, Numbers]:
        """Return means and standard deviations [rows] in octaves; before any measurement, means up to a constant."""
        if not self._errors:
            return self._prior, np.full(len(self._prior), math.sqrt(_OWN))
        # The constant by generalised least squares; the scale of the errors from the residuals.
        certainty = math.fsum(one * one for one in self._ones)
        level = math.fsum(map(operator.mul, self._ones, self._errors)) / certainty
        left = math.fsum((error - level * one) ** 2 for error, one in zip(self._errors, self._ones, strict=True))
        scale = (_USUAL + left) / (_USUAL + len(self._errors) - 1)
        mean = self._prior + level + self._of_errors - level * self._of_ones
        of_level = (1.0 - self._of_ones) ** 2 / certainty
        return mean, np.sqrt(np.maximum(_OWN - self._known + of_level, 1e-8) * scale)


def expected_gain(best: float, mean: Numbers, deviation: Numbers) -> Numbers:
    """Return the expected improvement [rows] over `best` in octaves, which counts 0 if a row is slower (Jones, Schonlau
    and Welch, 1998)."""
    z = (best - mean) / deviation
    # Beyond _FAR the distribution function is 0 or 1 to the last bit.
    below, near = (z > 0).astype(np.float64), np.flatnonzero(np.abs(z) < _FAR)
    below[near] = [0.5 * (1.0 + math.erf(each / math.sqrt(2.0))) for each in z[near].tolist()]
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    gain: Numbers = deviation * (z * below + density)
    return gain
