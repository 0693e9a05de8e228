"""Count how often configs have won neighbouring sizes, incrementally, so that a look-up is cheap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from genkern.gemm.problem import GemmProblem

_Group = tuple[str, GemmProblem]


class NeighbourWins:
    """The winners so far. Neighbours of a problem differ from it only in M, or only in N and K."""

    def __init__(self) -> None:
        self._names: dict[GemmProblem, str] = {}
        self._wins: Counter[tuple[_Group, str]] = Counter()

    def add(self, problem: GemmProblem, name: str) -> None:
        """Count the config of this name as the winner of a problem; it replaces an earlier one."""
        before, self._names[problem] = self._names.get(problem), name
        for group in _groups(problem):
            if before is not None:
                self._wins[group, before] -= 1
            self._wins[group, name] += 1

    def of(self, problem: GemmProblem, configs: Iterable[str]) -> dict[str, int]:
        """Return for each of these configs the number of neighbours of `problem`, without itself, that it has won."""
        own, groups = self._names.get(problem), _groups(problem)
        return {name: sum(self._wins[group, name] - (name == own) for group in groups) for name in configs}


def _groups(problem: GemmProblem) -> tuple[_Group, _Group]:
    """Return the keys of both groups of neighbours. Only the problem itself belongs to both."""
    return ("weights", replace(problem, M=1)), ("tokens", replace(problem, N=1, K=1))
