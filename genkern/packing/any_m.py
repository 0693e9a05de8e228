"""For which other M a config that won for one M can be called, by which kernels, and with which lower tiles; what else
winners of one order of sums are packed with, so that each M of their layer has a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.kernels.argument import alignment_of
from genkern.kernels.catalogue import form_of
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.offsets import wide_operands
from genkern.kernels.legality import legal
from genkern.kernels.specs import main_variant
from genkern.ops.op import get_op
from genkern.runtime.packed import PackedWinner
from genkern.runtime.untuned import Relatives

# Rows by which lower tiles differ: so many beyond M do no harm, and each tile more is another kernel.
_STEP = 16
# Up to so many rows, as far as the format has them. It is odd: rows of a column-major A of so many lie anywhere.
MOST_M = 2**17 - 1
# Kernels of one layer that are packed for no winner's M: those that count in 64 bits, or have lower tiles, say.
_MOST_FURTHER = 4

# Both ends of some M that follow each other.
Span = tuple[int, int]


@dataclass(frozen=True)
class Reach:
    """A config serves M from `least_m` to `most_m` with the kernels that it has for `kernels_of`."""

    least_m: int
    most_m: int
    kernels_of: GemmProblem


def reach(problem: GemmProblem, config: Config, gpu: Gpu, between: tuple[int, int]) -> Reach:
    """What a config that won for `problem` serves of the M in `between` (both included), around the problem's own.

    There it is legal, and its kernels differ in their masks for rows at most: those with a mask are taken for all.
    What makes a config illegal, or gives it other kernels, holds from some M on: so the ends are found by bisection.

    Of a column-major A it serves its Relatives alone: rows of A as it is stored have M elements, on whose alignment
    kernels rely.
    """
    relatives = Relatives.of(problem)
    masked = replace(problem, M=_overhanging(problem.M, config, relatives))
    shape = _shape(masked, config)

    def serves(steps: int) -> bool:
        there = replace(problem, M=problem.M + steps * relatives.step)
        return not legal(there, config, gpu) and _shape(there, config) == shape

    if not serves(0) or main_variant(masked, config).mask_m < main_variant(problem, config).mask_m:
        return Reach(problem.M, problem.M, problem)
    down = (problem.M - max(between[0], 1)) // relatives.step
    up = (min(between[1], MAX_DIMENSION) - problem.M) // relatives.step
    least, most = (problem.M + last_for(serves, steps) * relatives.step for steps in (-down, up))
    return Reach(least, most, masked)


def lower_tiles(problem: GemmProblem, config: Config, gpu: Gpu, least_m: int) -> list[tuple[Config, Reach]]:
    """The same config with lower tiles, for the M from `least_m` to below that of `problem`; the lowest first.

    Of a tile that has all rows, those beyond M cost more than those in it where TMA fills them with zeros
    (genkern.runtime.untuned). In steps of _STEP rows, as far as the family has such tiles.
    """
    if not problem.row_major_a or not form_of(config).uses_tma or config.BLOCK_SIZE_M < problem.M:
        return []
    found = []
    for rows in range(-(-least_m // _STEP) * _STEP, problem.M, _STEP):
        lower, there = replace(config, BLOCK_SIZE_M=rows), replace(problem, M=rows)
        if legal(there, lower, gpu):
            continue
        reached = reach(there, lower, gpu, (least_m, rows))
        if (reached.least_m, reached.most_m) == (least_m, rows):
            found.append((lower, reached))
            least_m = rows + 1
    return found


def _overhanging(m: int, config: Config, relatives: Relatives) -> int:
    """An M near `m` whose last tile overhangs, where tiles of the relatives can; of a column-major A one that is no
    multiple of more than all of them are, so that kernels are promised no more.
    """
    rows, step = config.BLOCK_SIZE_M, relatives.step
    can = rows > 1 and any((m + steps * step) % rows for steps in (1, 2))
    while (can and m % rows == 0) or (not relatives.problem.row_major_a and alignment_of(m) != relatives.divides):
        m += step
    return m


def _shape(problem: GemmProblem, config: Config) -> tuple[Variant, object]:
    """What of its kernels does not hang on where rows end."""
    variant = main_variant(problem, config)
    return replace(variant, name="", mask_m=False), tuple(wide_operands(problem, config.SPLIT_K).values())


def last_for(holds: Callable[[int], bool], end: int) -> int:
    """The last number from 0, where it holds, towards `end` for which it holds."""
    start = 0
    if holds(end):
        return end
    while abs(end - start) > 1:
        middle = (start + end) // 2
        if holds(middle):
            start = middle
        else:
            end = middle
    return start


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
