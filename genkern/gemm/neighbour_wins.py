"""How often configs have won sizes like another: counted as winners come, so that their number costs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Winner

_Group = tuple[str, GemmProblem]


class NeighbourWins:
    """The winners so far. Neighbours of a problem are the sizes of its format with the same N and K, or the same M."""

    def __init__(self) -> None:
        self._names: dict[GemmProblem, str] = {}
        self._wins: Counter[tuple[_Group, str]] = Counter()

    def add(self, winner: Winner) -> None:
        """Count this winner, in the place of the one that its problem had before."""
        problem, name = winner.problem, winner.config.name
        before, self._names[problem] = self._names.get(problem), name
        for group in _groups(problem):
            if before is not None:
                self._wins[group, before] -= 1
            self._wins[group, name] += 1

    def of(self, problem: GemmProblem, configs: Iterable[str]) -> dict[str, int]:
        """How many neighbours of `problem`, which is none itself, each of these configs has won."""
        own, groups = self._names.get(problem), _groups(problem)
        return {name: sum(self._wins[group, name] - (name == own) for group in groups) for name in configs}


def _groups(problem: GemmProblem) -> tuple[_Group, _Group]:
    """What its neighbours on either side have in common, the rest made one; only the problem itself is in both."""
    return ("weights", replace(problem, M=1)), ("tokens", replace(problem, N=1, K=1))
