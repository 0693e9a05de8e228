"""Groups of sizes that differ in M alone, and which order of sums all winners of one have. Pure functions of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, Winner

Group = tuple[GemmProblem, ...]
LEAST, LIBRARY = KINDS = ("least", "library")
# Totals so near the least are a tie, which the library's order wins: times of runs differ by as much.
_TIE = 1.005
# Before its sizes are tuned an order is worth it whose total is so near the least.
_NEAR, _UNKNOWN = 1.03, 1.10
# So many orders of a group are tried at most.
MOST = 3
_LARGEST_WEIGHT = 1e6


def groups_of(problems: Iterable[GemmProblem]) -> list[Group]:
    """The problems by all but M, in their order; of each group by M."""
    found: dict[GemmProblem, list[GemmProblem]] = {}
    for problem in problems:
        found.setdefault(replace(problem, M=1), []).append(problem)
    return [tuple(sorted(group, key=lambda problem: problem.M)) for group in found.values()]


def parse_weights(text: str) -> dict[int, float]:
    """How often calls have these M, `M:WEIGHT` with commas between them; 1 for any other. Raises InputError."""
    weights: dict[int, float] = {}
    for part in text.split(","):
        m, _, weight = part.partition(":")
        try:
            rows, value = int(m), float(weight)
        except ValueError:
            rows, value = 0, 0.0
        if not (rows > 0 and 0 <= value <= _LARGEST_WEIGHT) or rows in weights:
            raise InputError(f"--m_weights: {part[:40]!r} is not M:WEIGHT, an M once and a weight from 0 on: 1:4,64:1")
        weights[rows] = value
    if not any(weights.values()):
        raise InputError("--m_weights: every weight is 0: some M must count")
    return weights


def called_us(winner: Winner) -> float:
    """What is called takes so many microseconds: the config, or the library where `choice` says so."""
    if winner.choice == CONFIG_WINS or winner.vendor_us is None:
        return winner.duration_us
    return winner.vendor_us


def usually_slower(problem: GemmProblem, order: str) -> float:
    """What an order takes of which no time is known, as a share of the best: what a search finds for nothing else."""
    return _UNKNOWN


def contenders(
    known: Mapping[GemmProblem, Mapping[str, float]],
    weights: Mapping[int, float],
    library: str = "",
    unknown: Callable[[GemmProblem, str], float] = usually_slower,
) -> list[str]:
    """The orders that a group is worth tuning in, the most promising first: some, and `library` where it is known.

    `known` has for each problem the best time of each order that was measured, "" for those that are no class;
    `unknown` says what others take, as a share of the best.
    """
    best = {problem: min(times.values()) for problem, times in known.items() if times}

    def total(order: str) -> float:
        times = ((problem, us, known[problem].get(order)) for problem, us in best.items())
        return sum(
            weights.get(problem.M, 1.0) * (unknown(problem, order) * us if own is None else own)
            for problem, us, own in times
        )

    totals = {order: total(order) for order in {order for times in known.values() for order in times if order}}
    if not totals:
        return [library] if library else []
    ranked = sorted(totals, key=lambda order: (totals[order], order))
    near = [order for order in ranked if totals[order] <= _NEAR * totals[ranked[0]] < math.inf][:MOST]
    return near if library in ("", *near) else [*near[: MOST - 1], library]


@dataclass(frozen=True)
class Chosen:
    """The order of a group, its winners by problem, and their total time by the weights, in microseconds."""

    order: str
    winners: Mapping[GemmProblem, Winner]
    total_us: float


def choice(
    group: Group,
    found: Mapping[str, Mapping[GemmProblem, Winner]],
    weights: Mapping[int, float],
    *,
    library: str = "",
    kind: str = LEAST,
) -> Chosen | str:
    """The order whose winners take the least time over all M, by `weights`; or why there is none.

    `found` has by order the winners that are proved. Of orders that are nearly as fast the `library`'s is taken, and
    with the kind LIBRARY that one whatever it takes.
    """
    if kind == LIBRARY and not library:
        return "the library adds up in no order that a kernel here has, as far as bits show: --sums least takes another"
    whole: list[Chosen] = []
    refused: list[str] = []
    for order, winners in found.items():
        if missing := [str(problem.M) for problem in group if problem not in winners]:
            refused.append(f"{order} has no winner for M = {', '.join(missing)}")
        elif differing := _other_bits([winners[problem] for problem in group]):
            refused.append(f"{order}: {differing}")
        else:
            total_us = sum(weights.get(problem.M, 1.0) * called_us(winners[problem]) for problem in group)
            own = {problem: replace(winners[problem], batch_invariant=True) for problem in group}
            whole.append(Chosen(order, own, total_us))
    if kind == LIBRARY:
        whole = [chosen for chosen in whole if chosen.order == library]
    if not whole:
        return "no order of sums has a winner for every M" + (f": {'; '.join(refused)}" if refused else "")
    least_us = min(chosen.total_us for chosen in whole)
    near = [chosen for chosen in whole if chosen.total_us <= _TIE * least_us]
    return min(near, key=lambda chosen: (chosen.order != library, chosen.total_us, chosen.order))


def _other_bits(winners: Sequence[Winner]) -> str:
    """Which two winners gave rows other bits that are the same for all M, "" where none did."""
    told = [(winner, winner.check.row_bits) for winner in winners if winner.check and winner.check.row_bits]
    if not told:
        return ""
    reference, most = max(told, key=lambda each: len(each[1]))
    for winner, bits in told:
        if not most.startswith(bits):
            sizes = f"{winner.problem.size} and {reference.problem.size}"
            return f"rows of {sizes} have other bits, by {winner.config.name} and {reference.config.name}"
    return ""
