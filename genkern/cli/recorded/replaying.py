"""`genkern replay`: what strategies find in recorded spaces, how long a search would take, and what it misses."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.report import format_text
from genkern.errors import ResultsError
from genkern.file_io import require_start_or_none, require_writable, shown_path, write_whole
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import problem_cells
from genkern.recorded.assumed_costs import AssumedCosts, assumed_costs_of
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.screen import aligned
from genkern.search.guided.judged import judged_of
from genkern.search.limit import NO_LIMIT, Limit
from genkern.search.strategies import chosen_strategy, shown_names
from genkern.tuning.simulation import JOBS, SimulationResult, simulate

_MOST_JOBS = 1024
_jobs = number(f"a number of workers from 1 to {_MOST_JOBS}", 1, _MOST_JOBS, integer=True)


@dataclass(frozen=True)
class Figure:
    """One figure of a replay.

    name: its column in CSV
    title: its column in the printed table
    of: returns the figure; None if there is none
    shown: formats it for the printed table
    """

    name: str
    title: str
    of: Callable[[SimulationResult], float | None]
    shown: Callable[[float], str]


FIGURES = (
    Figure("compiled", "compiled", lambda found: found.compiled, "{:.0f}".format),
    Figure("measured", "measured", lambda found: len(found.measured), "{:.0f}".format),
    Figure("seconds", "s", lambda found: found.seconds, "{:.2f}".format),
    Figure("loss", "loss", lambda found: found.loss, "{:.2%}".format),
    Figure("final_loss", "by finals", lambda found: found.final_loss, "{:.2%}".format),
    Figure("expected_loss", "expected", lambda found: found.expected_loss, "{:.2%}".format),
    Figure("own_s", "own s", lambda found: found.own_s, "{:.2f}".format),
)


@dataclass(frozen=True)
class Replayed:
    """The result of one strategy on one recorded problem."""

    strategy: str
    recorded: RecordedProblem
    found: SimulationResult


def parse_replay(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern replay`. Raises InputError; SystemExit(0) after printing for --help."""
    return replay_parser().parse_args(argv)


def replay_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern replay",
        description="Judge search strategies on recorded spaces, without a GPU: what they find and miss, "
        "and how long they would take.",
    )
    group = p.add_argument_group("which strategies, on what")
    group.add_argument("recorded", metavar="RECORDED", help="a recorded table, a folder of tables, or a results file")
    group.add_argument(
        "--search",
        action="append",
        metavar="NAME",
        help=f"{', '.join(shown_names())} or FILE.py, may be repeated (default: that of a run)",
    )
    group.add_argument(
        "-j", "--jobs", type=_jobs, default=JOBS, metavar="N", help=f"compiles at a time (default: {JOBS})"
    )
    group.add_argument(
        "--budget", metavar="SECONDSs|N", help="a hard limit of each search, as for a run (default: none)"
    )
    group.add_argument("-o", "--output", metavar="FILE", help="write a line for each size and strategy, as CSV")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_replay(options: argparse.Namespace, console: Console) -> int:
    """Print a table of sizes for each strategy. Raises InputError, ResultsError or OutputError."""
    chosen = [chosen_strategy(name) for name in options.search or [None]]
    limit = Limit.parse(options.budget) if options.budget else NO_LIMIT
    if options.output:
        require_start_or_none(options.output, csv_text(()), "table of replays")
        require_writable(options.output)
    problems = [recorded for recorded in recorded_problems(options.recorded) if recorded.us]
    if not problems:
        raise ResultsError(f"{shown_path(options.recorded)}: it has no measurements")
    costs = assumed_costs_of(problems)
    within = f" within {limit.said}{'' if limit.seconds else ' binaries'}" if options.budget else ""
    replayed: list[Replayed] = []
    for strategy in chosen:
        search = partial(simulate, strategy, jobs=options.jobs, costs=costs, limit=limit)
        found = [Replayed(strategy.said, recorded, search(recorded)) for recorded in problems]
        head = f"{strategy.said}{within}, {options.jobs} compiles at a time"
        console.print("\n".join([head, *table(found), ""]))
        replayed += found
    for note in notes(problems, costs):
        console.print(note)
    if options.output:
        write_whole(options.output, csv_text(replayed))
    return 0


def table(replayed: Sequence[Replayed]) -> list[str]:
    """Return the lines of a table with a row per size.

    Below are the mean, the 95th percentile (nearest rank) and the worst value of each figure; then the means over each
    kind of size in HARD and over the other sizes; last a comparison of expected with actual losses.
    """
    head = ["size", "format", "of", *(figure.title for figure in FIGURES)]
    rows = [
        [*_named(each.recorded.problem), str(len(each.recorded.units)), *(_shown(figure, each) for figure in FIGURES)]
        for each in replayed
    ]
    known = {figure: sorted(_known(figure, replayed)) for figure in FIGURES}
    for what, over in _OVER_ALL.items():
        all_of = [figure.shown(over(values)) if values else "" for figure, values in known.items()]
        rows.append([what, "", "", *all_of])
    for what, some in _apart(replayed):
        means = [figure.shown(_mean(values)) if (values := _known(figure, some)) else "" for figure in FIGURES]
        rows.append([what, f"{len(some)} size{'s' * (len(some) > 1)}", "", *means])
    lines = aligned([head, *rows], [title for title in head if title not in ("size", "format")])
    return [*lines, *_expected(replayed)]


def _known(figure: Figure, replayed: Iterable[Replayed]) -> list[float]:
    return [of for each in replayed if (of := figure.of(each.found)) is not None]


def _apart(replayed: Sequence[Replayed]) -> list[tuple[str, list[Replayed]]]:
    """Return the replays of each kind of size in HARD, by name, then the other replays; empty if HARD has none."""
    found = [(name, [each for each in replayed if has(each.recorded.problem)]) for name, has in HARD.items()]
    hard = [id(each) for _, some in found for each in some]
    others = [each for each in replayed if id(each) not in hard]
    return [(name, some) for name, some in (*found, ("others", others)) if some and hard]


def _expected(replayed: Iterable[Replayed]) -> list[str]:
    """Return a line that compares expected losses with actual ones; none if no strategy gave an expected loss."""
    said = [
        (each.found.expected_loss, each.found.loss)
        for each in replayed
        if each.found.expected_loss is not None and each.found.loss is not None
    ]
    parts = []
    for low, high in itertools.pairwise(_CLAIMS):
        some = [pair for pair in said if low <= pair[0] < high]
        if some:
            claimed, lost = (_mean(values) for values in zip(*some, strict=True))
            parts.append(f"{claimed:.2%} expected and {lost:.2%} lost at {len(some)}")
    return [f"sizes by the loss that is expected: {'; '.join(parts)}"] if parts else []


def notes(problems: Sequence[RecordedProblem], costs: AssumedCosts) -> list[str]:
    """Return what a reader of the tables should know about the recorded spaces."""
    said = ["loss: relative to the best recorded time; the seconds do not include the finals"]
    for arch in sorted({recorded.gpu.arch for recorded in problems}):
        if (judged := judged_of(arch)) is not None:
            said.append(
                f"share of the best speed of {arch}'s model's first choices, at sizes it was not fitted to: {judged}"
            )
    if partly := sum(not recorded.whole for recorded in problems):
        said.append(f"{partly} of {len(problems)} sizes are recorded in part: their best may be missing")
    for share, what in (
        (costs.compiles_unknown, "compiles"),
        (costs.measurements_unknown, "measurements"),
    ):
        if share > 0:
            said.append(f"the durations of {share:.1%} of the {what} were not recorded: medians are used")
    return said


def csv_text(replayed: Iterable[Replayed]) -> str:
    """Return a line per size and strategy: the problem's columns, the strategy, its figures (seconds, shares), its
    best."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    cells = tuple(problem_cells(GemmProblem(1, 1, 1)))
    writer.writerow([*cells, "device", "strategy", "units", *(figure.name for figure in FIGURES), "best"])
    for each in replayed:
        figures = [figure.of(each.found) for figure in FIGURES]
        best = each.found.best.name if each.found.best else ""
        problem = problem_cells(each.recorded.problem).values()
        numbers = ["" if figure is None else f"{figure:.6g}" for figure in figures]
        writer.writerow([*problem, each.recorded.gpu.name, each.strategy, len(each.recorded.units), *numbers, best])
    return text.getvalue()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _nearest_rank(values: Sequence[float]) -> float:
    return values[math.ceil(0.95 * len(values)) - 1]


# Bounds of the classes of expected losses.
_CLAIMS = (0.0, 0.001, 0.005, math.inf)
_SMALL = 512
# Kinds of sizes whose times are predicted badly.
HARD: Mapping[str, Callable[[GemmProblem], bool]] = {
    "M = 2": lambda problem: problem.M == 2,
    f"N or K < {_SMALL}": lambda problem: min(problem.N, problem.K) < _SMALL,
    "odd N": lambda problem: problem.N % 2 == 1,
    "M = 1, not TN": lambda problem: problem.M == 1 and problem.layout != "TN",
}
# Functions of a figure's values in ascending order.
_OVER_ALL: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": _mean, "95 %": _nearest_rank, "worst": max}


def _named(problem: GemmProblem) -> list[str]:
    return [problem.size, format_text(problem)]


def _shown(figure: Figure, each: Replayed) -> str:
    of = figure.of(each.found)
    return "none" if of is None and figure.name == "loss" else "" if of is None else figure.shown(of)
