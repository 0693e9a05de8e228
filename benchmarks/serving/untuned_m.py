"""What an M that nobody tuned costs: each rule's choice among the winners of its neighbours, from the same times.

    python -m benchmarks.serving.untuned_m BUNDLE --count 200 --seed 0 [--tuned TUNED.genkern]
    python -m benchmarks.serving.untuned_m BUNDLE --seed 0 --sample 12 --write_sizes SAMPLE.yaml     # no GPU needed

(M, N, K) are drawn with M between tuned M of one N and K of the bundle, evenly by its logarithm. The winners of both
neighbours, as far as their kernels serve M, and torch.mm are timed once each, in the same rounds, weights cold, in CUDA
graphs; what each rule of genkern/runtime/bundles/untuned_m.py would have called is looked up among these times.
--write_sizes writes the first --sample of the same draw as a list of sizes; what tuning them gave, packed, comes back
by --tuned and takes part in the rounds. The keys are those of results/figures.yaml, for the rule that the dispatcher
has (--rule).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from benchmarks.common.figures import geomean, table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said
from benchmarks.serving.dispatching import Place, Rotated, argument_parser, dispatcher, gpu_place, is_plain, key_lines
from benchmarks.serving.other_rules import by_padding, next_larger
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.profiling.loaded_gemm import Call
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.bundles.untuned_m import Option, Rule, by_times, nearest
from genkern.runtime.calls.context import Context

TORCH, TUNED = "torch.mm", "tuned"
RULES: dict[str, Rule] = {
    "by_times": by_times,
    "next_larger": next_larger,
    "nearest": nearest,
    "by_padding": by_padding,
}
# A result is behind the library where torch.mm takes less than this share of its time.
LEAST = 0.98


@dataclass(frozen=True)
class Timed:
    """One size: medians in microseconds of torch.mm, of neighbours by their M, and of what tuning gave, if it did."""

    m: int
    n: int
    k: int
    dtype: str
    times_us: Mapping[str, float]

    @property
    def size(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def best_us(self) -> float:
        """The best of torch.mm and the neighbours: what a rule that is always right would call."""
        return min(us for name, us in self.times_us.items() if name != TUNED)


def drawn(winners: Iterable[Result], count: int, seed: int) -> list[GemmProblem]:
    """`count` distinct problems between tuned M, or as many as are found; fewer are the first of more."""
    tuned: dict[GemmProblem, list[int]] = {}
    for winner in winners:
        if is_plain(winner.problem):
            tuned.setdefault(replace(winner.problem, M=1), []).append(winner.problem.M)
    kinds = [(kind, sorted(set(ms))) for kind, ms in sorted(tuned.items(), key=lambda item: item[0].name)]
    kinds = [(kind, ms) for kind, ms in kinds if ms[-1] - ms[0] >= len(ms)]
    found: dict[GemmProblem, None] = {}
    draw = random.Random(seed)
    for _ in range(100 * count if kinds else 0):
        if len(found) == count:
            break
        kind, ms = draw.choice(kinds)
        m = round(math.exp(draw.uniform(math.log(ms[0]), math.log(ms[-1]))))
        if ms[bisect_left(ms, m)] != m:
            found[replace(kind, M=m)] = None
    return list(found)


class Neighbours:
    """The options that a rule is given for a problem, asked of the dispatcher's own table."""

    def __init__(self, place: Place, bundle: Bundle) -> None:
        self._options: list[Option] = []
        self._context = place.context([bundle], self._keep)
        self._gpu = place.gpu

    def _keep(self, m: int, options: Sequence[Option]) -> Option | None:
        self._options = list(options)
        return None

    def of(self, problem: GemmProblem) -> list[Option]:
        """In the order of their M; none where the problem is tuned itself."""
        self._options = []
        self._context.find(self._gpu, problem)
        return self._options


def called(rule: Rule, m: int, options: Sequence[Option]) -> str:
    """Under which name the choice of a rule was timed."""
    option = rule(m, options)
    return TORCH if option is None or option.call is None else str(option.m)


def only(m: int) -> Rule:
    """The rule that takes the neighbour with this M."""
    return lambda _, options: next((option for option in options if option.m == m), None)


def timed(
    place: Place, bundle: Bundle, tuned: Bundle | None, options: Sequence[Option], problem: GemmProblem, rounds: int
) -> Timed:
    """One size, with everything that could serve it."""
    rotated = Rotated(problem, place)
    calls: dict[str, Call] = {TORCH: rotated.by_torch()}
    for option in options:
        if option.call is not None:
            calls[str(option.m)] = rotated.by(dispatcher(place.context([bundle], only(option.m))))
    if tuned is not None:
        context: Context = place.context([tuned])
        choice = context.find(place.gpu, problem)
        if choice.exact:
            calls[TUNED] = rotated.by(dispatcher(context))
    times = alternate(rotated.samplers(calls), rounds)
    return Timed(problem.M, problem.N, problem.K, problem.dtype_a, times)


@dataclass(frozen=True)
class Judged:
    """A rule over all sizes: ratios of other times over that of its choice, so that more is better."""

    over_best: list[float]
    over_torch: list[float]
    over_tuned: list[float]
    behind: list[tuple[float, str, str]]


def judge(rule: Rule, found: Sequence[tuple[Timed, Sequence[Option]]]) -> Judged:
    """What the rule's choices cost. `behind` has those slower than torch.mm by more than 2 %, the worst first."""
    judged = Judged([], [], [], [])
    for each, options in found:
        name = called(rule, each.m, options)
        served_us = each.times_us[name]
        judged.over_best.append(each.best_us / served_us)
        ratio = each.times_us[TORCH] / served_us
        judged.over_torch.append(ratio)
        if TUNED in each.times_us:
            judged.over_tuned.append(each.times_us[TUNED] / served_us)
        if ratio < LEAST:
            judged.behind.append((ratio, each.size, name))
    judged.behind.sort()
    return judged


def report(found: Sequence[tuple[Timed, Sequence[Option]]], rule: str) -> str:
    """Markdown: a line a rule, and one that is always right; the worst of the dispatcher's rule; the keys."""
    judged = {name: judge(each, found) for name, each in RULES.items()}
    head = (
        "rule",
        "tuned / its choice",
        "least",
        "best of these / its choice",
        "torch.mm / its choice",
        "least",
        "behind",
    )
    rows = []
    for name, each in judged.items():
        cells = [_mean(each.over_tuned), _least(each.over_tuned), _mean(each.over_best), _mean(each.over_torch)]
        rows.append((name, *cells, _least(each.over_torch), len(each.behind)))
    of_tuned = [each.times_us[TUNED] / each.best_us for each, _ in found if TUNED in each.times_us]
    over_torch = [each.times_us[TORCH] / each.best_us for each, _ in found]
    rows.append(("always right", _mean(of_tuned), _least(of_tuned), "1.000", _mean(over_torch), _least(over_torch), 0))
    lines = [
        table(head, rows),
        "",
        f"{len(found)} sizes, {len(of_tuned)} of them tuned; behind: torch.mm / choice < {LEAST}",
    ]
    for ratio, size, name in judged[rule].behind[:8]:
        lines.append(f"{size} by {rule}: {ratio:.3f} of torch.mm (the winner of M = {name})")
    asked = judged[rule]
    figures = {
        "untuned_m_regret": geomean(asked.over_tuned) if asked.over_tuned else None,
        "untuned_m_over_torch": geomean(asked.over_torch) if asked.over_torch else None,
        "untuned_m_least": min(asked.over_torch, default=None),
    }
    return "\n".join([*lines, "", key_lines(figures)])


def _mean(ratios: Sequence[float]) -> str:
    return f"{geomean(ratios):.3f}" if ratios else "-"


def _least(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.3f}" if ratios else "-"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argument_parser(__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many sizes are drawn (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="by which they are drawn (default: 0)")
    parser.add_argument("--sample", type=int, default=12, help="how many of them --write_sizes writes (default: 12)")
    parser.add_argument("--write_sizes", metavar="FILE", help="write the first as a list of sizes; time nothing")
    parser.add_argument("--tuned", metavar="BUNDLE", help="what tuning these gave, packed")
    parser.add_argument("--rule", choices=RULES, default="by_times", help="of the keys (default: the dispatcher's)")
    return parser.parse_args(argv)


def run(place: Place, arguments: argparse.Namespace) -> str:
    """What is printed. Raises ResultsError."""
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    bundle = read_bundle(arguments.bundle)
    tuned = read_bundle(arguments.tuned) if arguments.tuned else None
    setting, neighbours = place.setting(__file__, arguments.bundle), Neighbours(place, bundle)
    with_tuned = place.setting(__file__, arguments.bundle, arguments.tuned) if arguments.tuned else ""
    has_tuned = {winner.problem for winner in tuned.winners} if tuned else set()
    here = [winner for winner in bundle.winners if place.gpu.identity.has(winner)]
    problems = {problem: neighbours.of(problem) for problem in drawn(here, arguments.count, arguments.seed)}
    # What tuning gave concerns the sizes that it has: the others are not timed again for it.
    keys = {problem: f"{with_tuned if problem in has_tuned else setting} {problem.name}" for problem in problems}
    known = {problem: kept.of(key) for problem, key in keys.items()}
    with torch.no_grad():
        for problem in limit.until([problem for problem, entry in known.items() if entry is None]):
            with said(problem.size):
                found = timed(place, bundle, tuned, problems[problem], problem, arguments.rounds)
                known[problem] = kept.add(keys[problem], asdict(found))
            place.release()
    entries = [(Timed(**entry), problems[problem]) for problem, entry in known.items() if entry is not None]
    return f"{report(entries, arguments.rule)}\n{len(entries)} of {len(problems)} sizes on {place}"


def main() -> None:
    arguments = parse(sys.argv[1:])
    with errors_end():
        if arguments.write_sizes:
            problems = drawn(read_bundle(arguments.bundle).winners, arguments.sample, arguments.seed)
            with open(arguments.write_sizes, "w", encoding="utf-8") as file:
                file.writelines(map(size_line, problems))
            return
        print(run(gpu_place(), arguments))


if __name__ == "__main__":
    main()
