"""Which config other timers would have chosen among the same binaries, and what that choice costs.

    genkern -i SIZES.yaml -o RESULTS.yaml --profile_file CANDIDATES.csv
    python -m benchmarks.timing.timer_choice RESULTS.yaml --candidates CANDIDATES.csv [-o FULL.jsonl]

For each size the best finalists and some others within 1.5x of the best are timed by genkern's finals (graphs, cold
weights, shuffled rounds), triton.testing.do_bench and do_bench_cudagraph (medians, as triton.autotune takes them), and
torch.compile's benchmarker. A second race of genkern's, in another order, is the judge of all four: what a choice costs
is the judge's time of it over the judge's best. All launch the farm's binaries through the same function.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.common.figures import DataFile, geomean, percentile, table
from benchmarks.common.workbench import Bench, argument_parser, rows_of, said, until, versions_line, workbench
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import problem_cells
from genkern.profiling.finals import Rounds
from genkern.timing.libraries import VENDOR
from genkern.timing.statistics import TIE_RATIO, estimate

# The judge and genkern's own choice: rounds, and seconds after which the fewest will do.
LEAST_ROUNDS, MOST_ROUNDS, RACE_S = 10, 60, 1.0
OTHERS_WITHIN = 1.5
GENKERN, JUDGE = "genkern", "judge"
PROBLEM_COLUMNS = tuple(problem_cells(GemmProblem(1, 1, 1)))

# Timer -> config -> microseconds.
Times = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Measured:
    """One candidate of a tuning that ran."""

    config: str
    stage: str
    us: float


def read_candidates(lines: Iterable[str], wanted: Collection[GemmProblem]) -> dict[GemmProblem, list[Measured]]:
    """The measured candidates of the wanted problems, from the CSV of --profile_file."""
    found: dict[GemmProblem, list[Measured]] = {problem: [] for problem in wanted}
    problems = {tuple(problem_cells(problem).values()): problem for problem in found}
    for row in csv.DictReader(lines):
        if row["outcome"] != "measured" or not row["us"]:
            continue
        if (known := problems.get(tuple(row[name] for name in PROBLEM_COLUMNS))) is not None:
            found[known].append(Measured(row["config"], row["stage"], float(row["us"])))
    return found


def pick(candidates: Sequence[Measured], finalists: int, others: int, seed: int = 0) -> list[str]:
    """The best `finalists`, those of the finals first, then `others` at random among the rest within 1.5x of it."""
    order = sorted(candidates, key=lambda m: (m.stage != "final", m.us, m.config))
    best, rest = order[:finalists], order[finalists:]
    if not best:
        return []
    limit_us = min(m.us for m in best) * OTHERS_WITHIN
    near = sorted(m.config for m in rest if m.us <= limit_us)
    return [m.config for m in best] + random.Random(seed).sample(near, min(others, len(near)))


@dataclass(frozen=True)
class Choice:
    """What one timer says of one size: its config, the cost (1 is the best), and whether it takes the better side.

    `side` compares with the vendor library as the judge does: "same", "other", or "tie" where the judge sees a tie.
    """

    config: str
    cost: float
    side: str


def choose(times: Times, timer: str) -> Choice | None:
    """The timer's choice among the configs that the judge timed too; None without any."""
    judge = {name: us for name, us in times[JUDGE].items() if name != VENDOR}
    own = {name: us for name, us in times.get(timer, {}).items() if name in judge}
    if not own:
        return None
    config = min(own, key=lambda name: (own[name], name))
    return Choice(config, judge[config] / min(judge.values()), side_of(times, timer, judge, own))


def side_of(times: Times, timer: str, judge: Mapping[str, float], own: Mapping[str, float]) -> str:
    vendor, own_vendor = times[JUDGE].get(VENDOR), times[timer].get(VENDOR)
    if vendor is None or own_vendor is None:
        return "tie"
    best = min(judge.values())
    if max(best, vendor) <= min(best, vendor) * TIE_RATIO:
        return "tie"
    return "same" if (min(own.values()) < own_vendor) == (best < vendor) else "other"


def report(sizes: Mapping[str, Times]) -> str:
    """Markdown: each timer's cost by size, then over all sizes."""
    timers = list(dict.fromkeys(t for times in sizes.values() for t in times if t != JUDGE))
    choices = {t: {size: choose(times, t) for size, times in sizes.items()} for t in timers}
    rows = []
    for size, times in sizes.items():
        best = min((us for name, us in times[JUDGE].items() if name != VENDOR), default=float("nan"))
        found = [choices[t][size] for t in timers]
        rows.append((size, f"{best:.2f}", *("-" if c is None else f"{c.cost:.3f}" for c in found)))
    summaries = []
    for timer in timers:
        made = [choice for choice in choices[timer].values() if choice is not None]
        costs = [choice.cost for choice in made]
        if made:
            over = [sum(cost > limit for cost in costs) for limit in (TIE_RATIO, 1.02, 1.05)]
            wrong = sum(choice.side == "other" for choice in made)
            means = [f"{value:.3f}" for value in (geomean(costs), percentile(costs, 0.9), max(costs))]
            summaries.append((timer, len(made), *over, *means, wrong))
    columns = ("timer", "sizes", "over 0.5 %", "over 2 %", "over 5 %", "geomean", "p90", "most", "vendor misjudged")
    return "\n".join([table(("size", "best us", *timers), rows), "", table(columns, summaries)])


def other_timers() -> dict[str, Callable[[Callable[[], None]], float]]:
    """The timers of Triton and PyTorch, as they come: a function of a call that returns microseconds."""
    from triton.testing import do_bench, do_bench_cudagraph

    timers: dict[str, Callable[[Callable[[], None]], float]] = {
        "do_bench": lambda call: do_bench(call, return_mode="median") * 1e3,
        "do_bench_cudagraph": lambda call: do_bench_cudagraph(call, return_mode="median") * 1e3,
    }
    with said("torch.compile's benchmarker is left out"):
        from torch._inductor.runtime.benchmarking import benchmarker

        timers["torch.compile"] = lambda call: benchmarker.benchmark_gpu(call) * 1e3
    return timers


def time_all(bench: Bench) -> Times:
    """The times of all timers for all candidates and the vendor library."""
    calls = bench.calls()
    samplers = bench.samplers(calls)
    times: Times = {}
    for timer, seed in ((GENKERN, 1), (JUDGE, 2)):
        finals = bench.race(samplers, Rounds(LEAST_ROUNDS, MOST_ROUNDS, RACE_S, seed))
        times[timer] = {name: estimate(us).median_us for name, us in finals.samples_us.items() if us}
    for timer, time_us in other_timers().items():
        times[timer] = {}
        for name, call in calls.items():
            with said(f"{bench.problem.size} {timer} {name}"):
                times[timer][name] = float(time_us(partial(call, 0)))
    return times


def main(argv: Sequence[str]) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("-c", "--candidates", required=True, help="the tuning's --profile_file")
    parser.add_argument("--finalists", type=int, default=12, help="of each size (default: 12)")
    parser.add_argument("--others", type=int, default=8, help="at random, within 1.5x of the best (default: 8)")
    arguments = parser.parse_args(argv)
    rows, data = rows_of(arguments), DataFile(arguments.output)
    with open(arguments.candidates, encoding="utf-8", newline="") as file:
        candidates = read_candidates(file, {row.problem for row in rows})
    sizes: dict[str, Times] = {}
    with workbench(arguments) as at:
        for row in until(arguments.seconds, rows):
            names = pick(candidates[row.problem], arguments.finalists, arguments.others)
            configs = [Config.parse(name) for name in names]
            with said(row.problem.size), at.open(row.problem, [*configs, row.config]) as bench:
                sizes[row.problem.size] = times = time_all(bench)
                data.add({"size": row.problem.size, "times_us": times})
        print(f"{versions_line(at)}\n")
    print(report(sizes))


if __name__ == "__main__":
    main(sys.argv[1:])
