"""Every M: what winners of one order of sums are packed with besides, so that each M of their layer has a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import alignment_of
from genkern.kernels.legality import legal
from genkern.ops.op import get_op
from genkern.packing.any_m import Reach, last_for, reach
from genkern.runtime.packed import PackedWinner

# Up to so many rows, as far as the format has them. It is odd: rows of a column-major A of so many lie anywhere.
MOST_M = 2**17 - 1
# Kernels of one layer that are packed for no winner's M: those that count in 64 bits, or have lower tiles, say.
_MOST_FURTHER = 4

# Both ends of some M that follow each other.
Span = tuple[int, int]


@dataclass(frozen=True)
class Kernels:
    """A config that won for `problem` on `gpu`, and for which M its kernels are packed."""

    problem: GemmProblem
    config: Config
    gpu: Gpu
    reaches: tuple[Reach, ...]


def further(layer: Sequence[Kernels], arch: str) -> list[tuple[int, Reach]]:
    """For the M that none of a layer's kernels takes: the place of a config that does, and for which of them it does.

    The nearest such config serves. Where A is column-major its kernels are promised nothing of M, and take all.
    """
    problem = layer[0].problem
    spans = [
        (each.least_m, each.most_m)
        for kernels in layer
        for each in kernels.reaches
        if problem.row_major_a or alignment_of(each.kernels_of.M) == 1
    ]
    found: list[tuple[int, Reach]] = []
    most = _most_m(problem, arch)
    for _ in range(_MOST_FURTHER):
        made = next(filter(None, (_further(layer, gap) for gap in gaps(spans, most))), None)
        if made is None:
            break
        found.append(made)
        spans.append((made[1].least_m, made[1].most_m))
    return found


def gaps(spans: Iterable[Span], most: int = MOST_M) -> list[Span]:
    """What of the M from 1 to `most` lies in none of these."""
    found, start = [], 1
    for least, end in sorted(spans):
        if start < least:
            found.append((start, min(least - 1, most)))
        start = max(start, end + 1)
    return [(first, last) for first, last in [*found, (start, most)] if first <= last]


def unserved(layer: Sequence[PackedWinner]) -> list[Span]:
    """The same of a bundle's winners of one layer: M that are errors when they are called."""
    # Of a column-major A, what takes odd M takes all.
    calls = (call for winner in layer for call in winner.calls if call.plan.keeps_promises(1))
    return gaps(((call.least_m, call.most_m) for call in calls), _most_m(layer[0].problem, layer[0].arch))


def _most_m(problem: GemmProblem, arch: str) -> int:
    """Up to MOST_M, what the format has: of rows in a buffer no more than this holds."""
    op = get_op(problem.op)
    return 1 + last_for(lambda more: not op.refuse(replace(problem, M=1 + more), arch), MOST_M - 1)


def _further(layer: Sequence[Kernels], gap: Span) -> tuple[int, Reach] | None:
    """A config that takes M at one end of the gap, and as many more of it as it takes."""
    first, last = gap
    ends = (first, last) if layer[0].problem.row_major_a else (first | 1, (last - 1) | 1)
    distances = (min(abs(kernels.problem.M - end) for end in ends) for kernels in layer)
    for _, place in sorted(zip(distances, range(len(layer)), strict=True)):
        kernels = layer[place]
        for m in ends:
            there = replace(kernels.problem, M=m)
            if not legal(there, kernels.config, kernels.gpu):
                made = reach(there, kernels.config, kernels.gpu, gap)
                # What takes no M but this one would be packed for each.
                if made.least_m < made.most_m or first == last:
                    return place, made
    return None
