"""Nearest: finds the winners of the tuned sizes that are most similar to a size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

# Largest number of winners, and largest distance: the sum of |log2| of the ratios of M, N and K.
_MOST, _FAR_OCTAVES = 3, 4.0


def nearest(problem: GemmProblem, winners: Iterable[tuple[GemmProblem, Config]]) -> tuple[Config, ...]:
    """Return the winners of the nearest sizes, nearest first, each config once.

    Only problems count that differ from `problem` in nothing but M, N and K.
    """
    alike = replace(problem, M=1, N=1, K=1)
    found = sorted(
        (octaves, config)
        for other, config in winners
        if other != problem
        and replace(other, M=1, N=1, K=1) == alike
        and (octaves := _octaves(problem, other)) <= _FAR_OCTAVES
    )
    return tuple(dict.fromkeys(config for _, config in found))[:_MOST]


def _octaves(one: GemmProblem, other: GemmProblem) -> float:
    pairs = (one.M, other.M), (one.N, other.N), (one.K, other.K)
    return sum(abs(math.log2(a / b)) for a, b in pairs)
