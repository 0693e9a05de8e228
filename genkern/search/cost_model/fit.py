"""Fits the cost model's constants to measured kernels, and judges how well constants order kernels.

The loss judges the order of kernels: for each size, the spread of log(predicted / measured) about its median, in which
    fast kernels count most, plus a small part of the median itself. The fit moves one constant at a time, in finer and
    finer steps, until a round over all constants lowers the loss by less than 0.2 %, or for six rounds. It uses no
    gradient, since the cost model has maxima and rounded-up counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.constants import Counted, ranges, using_constants
from genkern.search.cost_model.predict import predicted_us

# Beyond this many octaves errors count linearly (Huber loss): the model does not understand such a kernel.
_HUBER = 0.5
# Weight of a size's median error, relative to the spread about it.
_OF_MEDIAN = 0.1
# Each constant is multiplied by these factors and their inverses, large ones first.
_FACTORS = (2.0, 1.4, 1.15, 1.05)
_ROUNDS = 6
# The fit ends after a round that lowers the loss by less than this share.
_ENOUGH = 0.002
# Fitted constants must order held-out sizes better than shipped ones by this share. Noise of 2 % to 7 % alone caused
# such a gain in 5 of 96 fits on three sizes, and in none of 32 on six (simulated, sm_90 and gfx942).
_LEAST_GAIN = 0.05


@dataclass(frozen=True)
class Timed:
    """A measured kernel: the time of one call, and the resources of its binary."""

    config: Config
    resources: Resources
    duration_us: float


Sizes = Mapping[GemmProblem, Sequence[Timed]]


@dataclass(frozen=True)
class Order:
    """How well one size's kernels are ordered.

    kernels: number of kernels
    rank_correlation: Spearman's rank correlation of predicted and measured times
    best_place: position of the fastest kernel (0: first, 1: last)
    best_of_ten: best time of the first ten over the best of all
    """

    kernels: int
    rank_correlation: float
    best_place: float
    best_of_ten: float


@dataclass(frozen=True)
class Fit:
    """Fitted constants, with their losses and the losses of the shipped constants.

    loss, shipped_loss: on all sizes
    held_out: mean loss of the sizes, each with constants that were fitted on the other sizes; by order only
    shipped_held_out: the same with the shipped constants
    """

    constants: Counted
    loss: float
    shipped_loss: float
    held_out: float
    shipped_held_out: float

    @property
    def is_better(self) -> bool:
        """True if the constants order held-out sizes better by at least 5 %."""
        return self.held_out < self.shipped_held_out * (1 - _LEAST_GAIN)


def modelled_us(problem: GemmProblem, timed: Sequence[Timed], gpu: Gpu, constants: Counted) -> list[float]:
    """Return the predicted microseconds of these kernels with these constants."""
    with using_constants(constants):
        return predicted_us(problem, [each.config for each in timed], gpu, [each.resources for each in timed])


def loss_of(sizes: Sizes, gpu: Gpu, constants: Counted, of_median: float = _OF_MEDIAN) -> float:
    """Return the error of predictions, roughly in octaves; sizes count equally. With `of_median` 0 only the order
    counts."""
    return fmean(_loss_of_size(problem, timed, gpu, constants, of_median) for problem, timed in sizes.items())


def fit(sizes: Sizes, gpu: Gpu, shipped: Counted) -> Fit:
    """Fit constants on all sizes. To judge them, also fit without each size in turn, and test on that size.

    Raises ValueError for fewer than two sizes.
    """
    if len(sizes) < 2:
        raise ValueError("constants are fitted on two sizes at least")

    # Fits of nearly the same sizes, from the same start, evaluate mostly the same constants.
    @cache
    def of_size(problem: GemmProblem, tried: Counted) -> float:
        return _loss_of_size(problem, sizes[problem], gpu, tried, _OF_MEDIAN)

    def fitted_on(problems: Collection[GemmProblem]) -> Counted:
        return _minimised(lambda tried: fmean(of_size(each, tried) for each in problems), shipped, ranges(gpu))

    constants = fitted_on(sizes)
    held_out = []
    for problem, timed in sizes.items():
        found = fitted_on([other for other in sizes if other != problem])
        held_out.append(loss_of({problem: timed}, gpu, found, of_median=0.0))
    before, order_before = loss_of(sizes, gpu, shipped), loss_of(sizes, gpu, shipped, of_median=0.0)
    return Fit(constants, loss_of(sizes, gpu, constants), before, fmean(held_out), order_before)


def order_of(problem: GemmProblem, timed: Sequence[Timed], gpu: Gpu, constants: Counted) -> Order:
    """Return how well the cost model orders these kernels, at least two."""
    predicted = modelled_us(problem, timed, gpu, constants)
    measured = [each.duration_us for each in timed]
    ranked = sorted(range(len(timed)), key=predicted.__getitem__)
    best = min(range(len(timed)), key=measured.__getitem__)
    ten = min(measured[place] for place in ranked[:10])
    place = ranked.index(best) / (len(timed) - 1)
    return Order(len(timed), _correlation(_ranks(predicted), _ranks(measured)), place, ten / measured[best])


def _minimised(loss: Callable[[Counted], float], start: Counted, allowed: Mapping[str, tuple[float, float]]) -> Counted:
    best, least = start, loss(start)
    for _ in range(_ROUNDS):
        before = least
        for name, (low, high) in allowed.items():
            for factor in _FACTORS:
                for by in (factor, 1 / factor):
                    # Continue in one direction as long as it helps.
                    while True:
                        value = min(high, max(low, getattr(best, name) * by))
                        if value == getattr(best, name):
                            break
                        tried = replace(best, **{name: value})
                        if (found := loss(tried)) >= least:
                            break
                        best, least = tried, found
        if least > before * (1 - _ENOUGH):
            break
    return best


def _loss_of_size(
    problem: GemmProblem, timed: Sequence[Timed], gpu: Gpu, constants: Counted, of_median: float
) -> float:
    predicted = modelled_us(problem, timed, gpu, constants)
    fastest_us = min(each.duration_us for each in timed)
    errors, weights = [], []
    for us, each in zip(predicted, timed, strict=True):
        if math.isfinite(us):
            errors.append(math.log2(us / each.duration_us))
            weights.append(fastest_us / each.duration_us)
    if not errors:
        return 0.0
    middle = median(errors)
    about = sum(weight * _huber(error - middle) for error, weight in zip(errors, weights, strict=True)) / sum(weights)
    return about + of_median * _huber(middle)


def _huber(error: float) -> float:
    size = abs(error)
    return size * size if size <= _HUBER else _HUBER * (2 * size - _HUBER)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values get their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2
        first = last + 1
    return ranks


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if one of the sequences is constant."""
    means = fmean(one), fmean(other)
    both = sum((a - means[0]) * (b - means[1]) for a, b in zip(one, other, strict=True))
    squares = sum((a - means[0]) ** 2 for a in one) * sum((b - means[1]) ** 2 for b in other)
    return both / math.sqrt(squares) if squares else 0.0
