"""`LabSizes`: which sizes of a `genkern lab` run wait, are under way on a GPU, or were given up.

Independent of Dask.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from genkern.gemm.problem import GemmProblem

# A process of genkern takes seconds to start, so a share has several sizes. It has few enough that the last sizes of a
# run are not all on one GPU: half of the sizes that are left are divided among the GPUs (guided self-scheduling,
# Polychronopoulos and Kuck 1987).
_MOST = 16
_HALF = 2
# A size is given up after its node was lost this many times, since the size may be the reason.
_LOSSES = 3


@dataclass(frozen=True)
class Place:
    """The GPUs of one architecture on one node: the node's address, and the architecture."""

    node: str
    arch: str


@dataclass
class LabSizes:
    """The sizes of a run.

    left: sizes that are not under way, by architecture, largest first
    under_way: by number of the share: its place, and its sizes without a result
    given_up: architecture and size, for sizes during which nodes were lost `_LOSSES` times
    """

    left: dict[str, deque[GemmProblem]]
    in_flight: dict[int, tuple[Place, list[GemmProblem]]] = field(default_factory=dict)
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
        return not self.in_flight and not any(self.left.values())

    def waiting(self) -> list[str]:
        """Return the architectures with sizes that no GPU is tuning."""
        return [arch for arch, left in self.left.items() if left]

    def take(self, gpus: Mapping[Place, int]) -> list[tuple[int, Place, tuple[GemmProblem, ...]]]:
        """Return the shares with which free GPUs begin now; `gpus` is the number of GPUs of each place, free or not."""
        busy = Counter(place for place, _ in self.in_flight.values())
        free = [place for place, count in gpus.items() for _ in range(count - busy[place])]
        shares = []
        for place in free:
            if left := self.left.get(place.arch):
                of_arch = sum(count for other, count in gpus.items() if other.arch == place.arch)
                # Each GPU gets an equal part, so that the largest sizes are spread over the GPUs.
                count = max(1, min(_MOST, len(left) // (_HALF * of_arch)))
                taken = [left.popleft() for _ in range(count)]
                self._next += 1
                self.in_flight[self._next] = place, taken
                shares.append((self._next, place, tuple(taken)))
        return shares

    def finished(self, number: int, problem: GemmProblem) -> None:
        """Record that a size of a share has its result."""
        _, sizes = self.in_flight.get(number, (None, []))
        if problem in sizes:
            sizes.remove(problem)

    def ended(self, number: int) -> list[GemmProblem]:
        """Remove a share that has ended; return its sizes without a result."""
        return self.in_flight.pop(number)[1]

    def lost(self, number: int, *, at_fault: bool = True) -> None:
        """Record that a share's node or GPU was lost: its sizes without a result go to the front of the queue.

        With `at_fault`, the first of these sizes may be the reason: the loss is counted against it.
        """
        place, sizes = self.in_flight.pop(number)
        if sizes and at_fault:
            self._losses[place.arch, sizes[0]] += 1
        for problem in reversed(sizes):
            if self._losses[place.arch, problem] >= _LOSSES:
                self.given_up.append((place.arch, problem))
            else:
                self.left[place.arch].appendleft(problem)
