"""Groups of sizes that differ only in M, and the choice of a group's order of sums. Pure functions of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS
from genkern.result.result import Result

Group = tuple[GemmProblem, ...]
LEAST, LIBRARY = KINDS = ("least", "library")
# Totals within this factor of the least are a tie, since times of two runs differ by as much. The library's order wins
# a tie.
_TIE = 1.005
# `contenders`: a group is tuned in an order if the order's total is at most _NEAR times the least total. _UNKNOWN is
# the assumed time of an order without a measured time, relative to the best time of the problem.
_NEAR, _UNKNOWN = 1.03, 1.10
# Largest number of orders of sums in which a group of sizes is tuned.
MOST = 3
_LARGEST_WEIGHT = 1e6


def groups_of(problems: Iterable[GemmProblem]) -> list[Group]:
    """Group problems that differ only in M; each group is sorted by M."""
    found: dict[GemmProblem, list[GemmProblem]] = {}
    for problem in problems:
        found.setdefault(replace(problem, M=1), []).append(problem)
    return [tuple(sorted(group, key=lambda problem: problem.M)) for group in found.values()]


def parse_weights(text: str) -> dict[int, float]:
    """Parse weights of M, `M:WEIGHT,M:WEIGHT`; any other M has the weight 1. Raises InputError."""
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


def called_us(winner: Result) -> float:
    """Return the microseconds of what is called: the config, or the library according to `choice`."""
    if winner.choice == CONFIG_WINS or winner.vendor_us is None:
        return winner.known_us
    return winner.vendor_us


def usually_slower(problem: GemmProblem, order: str) -> float:
    """Return the assumed time, relative to the best time, of an order that was not measured for the problem."""
    return _UNKNOWN


def contenders(
    known: Mapping[GemmProblem, Mapping[str, float]],
    weights: Mapping[int, float],
    library: str = "",
    unknown: Callable[[GemmProblem, str], float] = usually_slower,
) -> list[str]:
    """Return up to `MOST` orders that a group should be tuned in, most promising first; `library` is always included.

    known: for each problem the best time of each order that was measured; "" stands for configs without an order
    weights: weight of each M
    library: the order of the library's calls, or ""
    unknown: returns the assumed time of an order that was not measured, relative to the problem's best time
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
    winners: Mapping[GemmProblem, Result]
    total_us: float


def choice(
    group: Group,
    found: Mapping[str, Mapping[GemmProblem, Result]],
    weights: Mapping[int, float],
    *,
    library: str = "",
    kind: str = LEAST,
) -> Chosen | str:
    """Return the order whose winners take the least total time over all M, by `weights`; or why there is none.

    found: for each order the winners whose output was proved
    library: the library's order, which is taken if its total is within 0.5 % of the least
    kind: LIBRARY takes the library's order in any case
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


def _other_bits(winners: Sequence[Result]) -> str:
    """Return a line with two winners that gave different bits for rows that are the same for all M; "" if none did."""
    told = [(winner, winner.check.row_bits) for winner in winners if winner.check and winner.check.row_bits]
    if not told:
        return ""
    reference, most = max(told, key=lambda each: len(each[1]))
    for winner, bits in told:
        if not most.startswith(bits):
            sizes = f"{winner.problem.size} and {reference.problem.size}"
            return f"rows of {sizes} have other bits, by {winner.config_name} and {reference.config_name}"
    return ""
