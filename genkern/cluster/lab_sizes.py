"""LabSizes: which sizes are still to be tuned, and on which GPU each is; knows nothing of Dask."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from genkern.gemm.problem import GemmProblem

# A process of genkern takes seconds to begin, so it gets several sizes; and not so many that the last ones of a run
# are all with one GPU: half of what is left is shared out (guided self-scheduling, Polychronopoulos and Kuck 1987).
_MOST = 16
_HALF = 2
# A size whose node is lost so often is not tried again: it may be what ends nodes.
_LOSSES = 3


@dataclass(frozen=True)
class Place:
    """A GPU of a node, as far as anybody needs to know: the node's address and the architecture."""

    node: str
    arch: str


@dataclass
class LabSizes:
    """Sizes by architecture, largest first; `given_up` are those that have lost too many nodes."""

    left: dict[str, deque[GemmProblem]]
    under_way: dict[int, tuple[Place, list[GemmProblem]]] = field(default_factory=dict)
    given_up: list[tuple[str, GemmProblem]] = field(default_factory=list)
    _losses: Counter[tuple[str, GemmProblem]] = field(default_factory=Counter)
    _next: int = 0

    @classmethod
    def of(cls, problems: Mapping[str, Iterable[GemmProblem]]) -> LabSizes:
        return cls(
            {arch: deque(sorted(given, key=lambda p: p.flops, reverse=True)) for arch, given in problems.items()}
        )

    @property
    def is_done(self) -> bool:
        return not self.under_way and not any(self.left.values())

    def waiting(self) -> list[str]:
        """Architectures of which sizes are left that no GPU has."""
        return [arch for arch, left in self.left.items() if left]

    def take(self, gpus: Mapping[Place, int]) -> list[tuple[int, Place, tuple[GemmProblem, ...]]]:
        """What free GPUs begin with now, each share with a number; `gpus`: how many a node has, free or not."""
        busy = Counter(place for place, _ in self.under_way.values())
        free = [place for place, count in gpus.items() for _ in range(count - busy[place])]
        shares = []
        for place in free:
            if left := self.left.get(place.arch):
                of_arch = sum(count for other, count in gpus.items() if other.arch == place.arch)
                # Every so many-th: the others of the arch get sizes as large.
                count = max(1, min(_MOST, len(left) // (_HALF * of_arch)))
                taken = [left.popleft() for _ in range(count)]
                self._next += 1
                self.under_way[self._next] = place, taken
                shares.append((self._next, place, tuple(taken)))
        return shares

    def finished(self, number: int, problem: GemmProblem) -> None:
        """One of the sizes of a share has its result."""
        _, sizes = self.under_way.get(number, (None, []))
        if problem in sizes:
            sizes.remove(problem)

    def ended(self, number: int) -> list[GemmProblem]:
        """The share has come to its end: its sizes that have no result, and get none."""
        return self.under_way.pop(number)[1]

    def lost(self, number: int, *, at_fault: bool = True) -> None:
        """The node went, or its GPU: what has no result is for others, and first; the first may be `at_fault`."""
        place, sizes = self.under_way.pop(number)
        if sizes and at_fault:
            self._losses[place.arch, sizes[0]] += 1
        for problem in reversed(sizes):
            if self._losses[place.arch, problem] >= _LOSSES:
                self.given_up.append((place.arch, problem))
            else:
                self.left[place.arch].appendleft(problem)
