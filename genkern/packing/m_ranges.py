"""Which other M a config that won for one M can serve, with which kernels, and with which lower tiles.

Also finds further kernels for winners of one order of sums, so that every M of their layer has a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.argument import alignment_of
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.index_width import wide_operands
from genkern.kernels.legality import legal
from genkern.kernels.specs import main_variant
from genkern.ops.op import get_op
from genkern.result.result import Result
from genkern.runtime.bundles.untuned_m import Relatives

# Step between lower tiles, in rows: a few rows beyond M do no harm, and each further tile is another kernel.
_STEP = 16
# Batch-invariant layers get kernels for every M up to this, if the format has it. It is odd, so that a column-major A
# may have rows of any alignment.
MOST_M = 2**17 - 1
# Limit of further kernels per layer: kernels for M that no winner's kernels serve, for example with 64-bit offsets or
# lower tiles.
_MOST_FURTHER = 4

# The first and the last of consecutive M.
Span = tuple[int, int]


@dataclass(frozen=True)
class MRange:
    """A config serves M from `least_m` to `most_m` with the kernels that it has for the problem `kernels_of`."""

    least_m: int
    most_m: int
    kernels_of: GemmProblem


def m_range(problem: GemmProblem, config: Config, gpu: Gpu, between: tuple[int, int]) -> MRange:
    """Return the range of M around the problem's own, within `between` (both ends included), that a config serves.

    It serves an M if it is legal there, and if its kernels differ at most in their masks for rows; kernels with a mask
    are used for the whole range. A config becomes illegal, or gets other kernels, from some M on, so bisection finds
    both ends.

    For a column-major A it serves only the problem's Relatives: rows of A in memory have M elements, and kernels assume
    their alignment.
    """
    relatives = Relatives.of(problem)
    masked = replace(problem, M=_overhanging(problem.M, config, relatives))
    shape = _shape(masked, config)

    def serves(steps: int) -> bool:
        there = replace(problem, M=problem.M + steps * relatives.step)
        return not legal(there, config, gpu) and _shape(there, config) == shape

    if not serves(0) or main_variant(masked, config).mask_m < main_variant(problem, config).mask_m:
        return MRange(problem.M, problem.M, problem)
    down = (problem.M - max(between[0], 1)) // relatives.step
    up = (min(between[1], MAX_DIMENSION) - problem.M) // relatives.step
    least, most = (problem.M + last_for(serves, steps) * relatives.step for steps in (-down, up))
    return MRange(least, most, masked)


def lower_tiles(problem: GemmProblem, config: Config, gpu: Gpu, least_m: int) -> list[tuple[Config, MRange]]:
    """Return the config with tiles of fewer rows, for M from `least_m` to below the problem's M; fewest rows first.

    If TMA loads a tile, the rows beyond M, which it fills with zeros, cost more time than real rows
    (genkern.runtime.bundles.untuned_m). Tiles are _STEP rows apart, as far as the family has such tiles. Empty if the
    family does not use TMA, if A is column-major, or if one tile has fewer rows than M.
    """
    if not problem.row_major_a or not traits_of(config).uses_tma or config.BLOCK_SIZE_M < problem.M:
        return []
    found = []
    for rows in range(-(-least_m // _STEP) * _STEP, problem.M, _STEP):
        lower, there = replace(config, BLOCK_SIZE_M=rows), replace(problem, M=rows)
        if legal(there, lower, gpu):
            continue
        reached = m_range(there, lower, gpu, (least_m, rows))
        if (reached.least_m, reached.most_m) == (least_m, rows):
            found.append((lower, reached))
            least_m = rows + 1
    return found


def _overhanging(m: int, config: Config, relatives: Relatives) -> int:
    """Return `m`, or the next relative of it whose last tile extends beyond M, if a relative has such a tile.

    For a column-major A, the alignment of the result is the one that all relatives have, so that kernels assume no
    more.
    """
    rows, step = config.BLOCK_SIZE_M, relatives.step
    can = rows > 1 and any((m + steps * step) % rows for steps in (1, 2))
    while (can and m % rows == 0) or (not relatives.problem.row_major_a and alignment_of(m) != relatives.divides):
        m += step
    return m


def _shape(problem: GemmProblem, config: Config) -> tuple[Variant, object]:
    """Return what kernels depend on apart from the place where rows end."""
    variant = main_variant(problem, config)
    return replace(variant, name="", mask_m=False), tuple(wide_operands(problem, config.SPLIT_K).values())


def last_for(holds: Callable[[int], bool], end: int) -> int:
    """Return the last number from 0 towards `end` for which `holds`; it must hold for 0."""
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
    """A config that won for `problem` on `gpu`, and the ranges of M for which its kernels are packed."""

    problem: GemmProblem
    config: Config
    gpu: Gpu
    reaches: tuple[MRange, ...]


def further(layer: Sequence[Kernels], arch: str) -> list[tuple[int, MRange]]:
    """Return kernels for the M that none of a layer's kernels serves: index of a config in `layer`, and its range.

    The config that won for the nearest M is taken. If A is column-major, these kernels assume no alignment of M, so
    they serve every M of their range.
    """
    problem = layer[0].problem
    spans = [
        (each.least_m, each.most_m)
        for kernels in layer
        for each in kernels.reaches
        if problem.row_major_a or alignment_of(each.kernels_of.M) == 1
    ]
    found: list[tuple[int, MRange]] = []
    most = _most_m(problem, arch)
    for _ in range(_MOST_FURTHER):
        made = next(filter(None, (_further(layer, gap) for gap in gaps(spans, most))), None)
        if made is None:
            break
        found.append(made)
        spans.append((made[1].least_m, made[1].most_m))
    return found


def gaps(spans: Iterable[Span], most: int = MOST_M) -> list[Span]:
    """Return the ranges of M from 1 to `most` that are in none of the spans."""
    found, start = [], 1
    for least, end in sorted(spans):
        if start < least:
            found.append((start, min(least - 1, most)))
        start = max(start, end + 1)
    return [(first, last) for first, last in [*found, (start, most)] if first <= last]


def unserved(layer: Sequence[Result]) -> list[Span]:
    """Return the ranges of M that none of a layer's packed winners serves, and whose calls therefore fail."""
    # For a column-major A, a kernel that serves odd M serves all M.
    calls = (call for winner in layer for call in winner.calls if call.plan.keeps_promises(1))
    return gaps(((call.least_m, call.most_m) for call in calls), _most_m(layer[0].problem, layer[0].arch))


def _most_m(problem: GemmProblem, arch: str) -> int:
    """Return the largest M up to MOST_M that the format supports: rows in a buffer are limited by its capacity."""
    op = get_op(problem.op)
    return 1 + last_for(lambda more: not op.refuse(replace(problem, M=1 + more), arch), MOST_M - 1)


def _further(layer: Sequence[Kernels], gap: Span) -> tuple[int, MRange] | None:
    """Return a config that serves M at one end of the gap, with the part of the gap that it serves; else None."""
    first, last = gap
    ends = (first, last) if layer[0].problem.row_major_a else (first | 1, (last - 1) | 1)
    distances = (min(abs(kernels.problem.M - end) for end in ends) for kernels in layer)
    for _, place in sorted(zip(distances, range(len(layer)), strict=True)):
        kernels = layer[place]
        for m in ends:
            there = replace(kernels.problem, M=m)
            if not legal(there, kernels.config, kernels.gpu):
                made = m_range(there, kernels.config, kernels.gpu, gap)
                # A config that serves only this M would need another kernel for each M.
                if made.least_m < made.most_m or first == last:
                    return place, made
    return None
