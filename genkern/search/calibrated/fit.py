"""Fits the constants of the model that orders a GPU's configs to measured kernels; says how well an order is one. Pure.

What is minimised is about order: of each size the spread of log(predicted / measured) about its median, where fast
kernels count most, and little of the median itself. A constant at a time is moved along its range, in steps that grow
finer, until a round of all of them brings nothing: the predictor is a maximum of terms, which has no gradient where it
matters.
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
from genkern.search.calibrated.constants import Counted, counting_with, ranges
from genkern.search.predict import predicted_us

# Errors beyond this many octaves are no worse than linear (Huber): a kernel that the model does not understand.
_HUBER = 0.5
# What a size's median error counts beside the spread about it.
_OF_MEDIAN = 0.1
# Each constant is multiplied by these and their inverses, the large ones first.
_FACTORS = (2.0, 1.4, 1.15, 1.05)
_ROUNDS = 6
# A round that lowers the loss by less than this share is the last.
_ENOUGH = 0.002
# By so much fitted constants have to order sizes better that they were not fitted on than shipped ones do. Noise of 2 %
# to 7 % alone gave that in 5 of 96 fits on three sizes, and in none of 32 on six (simulated, sm_90 and gfx942).
_LEAST_GAIN = 0.05


@dataclass(frozen=True)
class Timed:
    """A kernel that was measured: what one call took, and what its binary needs."""

    config: Config
    resources: Resources
    duration_us: float


Sizes = Mapping[GemmProblem, Sequence[Timed]]


@dataclass(frozen=True)
class Order:
    """How good an order of one size's kernels is.

    `rank_correlation` is Spearman's; `best_place` where the fastest stands (0: first, 1: last); `best_of_ten` the best
    time among the first ten over the best of all.
    """

    kernels: int
    rank_correlation: float
    best_place: float
    best_of_ten: float


@dataclass(frozen=True)
class Fit:
    """Constants with their loss, beside that of the shipped ones; `held_out` are both on sizes left out,
    of their order alone.
    """

    constants: Counted
    loss: float
    shipped_loss: float
    held_out: float
    shipped_held_out: float

    @property
    def is_better(self) -> bool:
        """Whether they order sizes better that they were not fitted on."""
        return self.held_out < self.shipped_held_out * (1 - _LEAST_GAIN)


def modelled_us(problem: GemmProblem, timed: Sequence[Timed], gpu: Gpu, constants: Counted) -> list[float]:
    """What the predictor says of these kernels, in microseconds, with these constants."""
    with counting_with(constants):
        return predicted_us(problem, [each.config for each in timed], gpu, [each.resources for each in timed])


def loss_of(sizes: Sizes, gpu: Gpu, constants: Counted, of_median: float = _OF_MEDIAN) -> float:
    """How far predictions are off, in octaves or so, each size counting the same; with `of_median` 0 their order."""
    return fmean(_loss_of_size(problem, timed, gpu, constants, of_median) for problem, timed in sizes.items())


def fit(sizes: Sizes, gpu: Gpu, shipped: Counted) -> Fit:
    """Fit on all sizes; and for each, on the others, to see what that is worth. Raises ValueError below two sizes."""
    if len(sizes) < 2:
        raise ValueError("constants are fitted on two sizes at least")

    # Fits of nearly the same sizes, from the same start, mostly ask for the same.
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
    """How well the predictor orders these kernels, two at least."""
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
                    # In one direction for as long as it helps.
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
    """The place of each in their order, equal ones in the middle of theirs."""
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
    """Pearson's; 0 where one of them is all the same."""
    means = fmean(one), fmean(other)
    both = sum((a - means[0]) * (b - means[1]) for a, b in zip(one, other, strict=True))
    squares = sum((a - means[0]) ** 2 for a in one) * sum((b - means[1]) ** 2 for b in other)
    return both / math.sqrt(squares) if squares else 0.0
