"""Loss of searches at sizes that the model of times does not know: held-out sizes, sizes of another GPU, and no model.

    python -m benchmarks.search.unknown_sizes results/recorded --also results/recorded/searched [--every 2]

Replays recorded spaces, so it needs no GPU. The models are trees without networks, which a CPU fits in minutes; the
shipped model, which has both, errs less. They learn from all sizes of RECORDED and from a quarter of the sizes of
--also. The cases:

    held out    by models of the other parts of the sizes, cut into four parts by M, N and K; --parts chooses parts
    other GPU   sizes of each GPU by a model of the other GPU's sizes alone
    no model    by the cost model alone, as on GPUs without recorded times

Losses and seconds are as `genkern replay` prints them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.common.figures import percentile, table
from benchmarks.search.rivals import mean
from genkern.errors import GenkernError
from genkern.recorded.assumed_costs import AssumedCosts, assumed_costs_of
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.training import Sample, folds_of, sampled, size_of, trained
from genkern.search.guided.guided import Guided
from genkern.search.guided.learned import Learned
from genkern.search.guided.predicted_order import PredictedOrder
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Strategy, Task
from genkern.tuning.simulation import SimulationResult, simulate

_PARTS, _SHARE, _SEED = 4, 0.25, 4
# A case's name, its sizes, and their model; None: the cost model alone.
Case = tuple[str, Sequence[RecordedProblem], Learned | None]


def _first(count: int, task: Task, learned: Callable[[str], Learned | None]) -> Strategy:
    return PredictedOrder(replace(task, number=count), learned)


STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    "guided": Guided,
    **{f"predicted:{count}": partial(_first, count) for count in (32, 48)},
}


def cases(
    problems: Sequence[RecordedProblem],
    others: Sequence[RecordedProblem],
    names: Sequence[str],
    every: int = 1,
    parts: Sequence[int] = range(_PARTS),
) -> Iterator[Case]:
    """Yield the cases of these names with every n-th of their sizes, each as soon as its model is trained."""
    if "no model" in names:
        yield "no model", problems[::every], None
    drawn = np.random.default_rng(_SEED).random(len(problems) + len(others)) < _SHARE
    known = [*problems, *(each for each, is_drawn in zip(others, drawn[len(problems) :], strict=True) if is_drawn)]
    samples = list(map(sampled, known)) if {*names} - {"no model"} else []

    def model(knows: Callable[[RecordedProblem], bool]) -> Learned:
        chosen: list[Sample] = [sample for each, sample in zip(known, samples, strict=True) if knows(each)]
        return trained(chosen, problems[0].gpu.arch, networks=False)

    for gpu in sorted({each.gpu.name for each in problems}) if "other GPU" in names else ():
        theirs = [each for each in problems if each.gpu.name == gpu]
        yield f"other GPU: {gpu}", theirs[::every], model(lambda each, gpu=gpu: each.gpu.name != gpu)
    folded = list(zip(problems, folds_of([each.problem for each in problems], _PARTS), strict=True))
    held_out = [(each, fold) for each, fold in folded if fold in parts][::every]
    for part in parts if "held out" in names else ():
        unknown = {size_of(each) for each, fold in folded if fold == part}
        theirs = [each for each, fold in held_out if fold == part]
        yield "held out", theirs, model(lambda each, unknown=unknown: size_of(each) not in unknown)


def searched(
    case: Case, costs: AssumedCosts, strategies: Mapping[str, Callable[..., Strategy]] = STRATEGIES
) -> dict[tuple[str, str], list[SimulationResult]]:
    """Return what each strategy finds at each size of a case."""
    name, problems, model = case

    def found(search: str, recorded: RecordedProblem) -> SimulationResult:
        make = partial(strategies[search], learned=lambda arch: model)
        return simulate(ChosenStrategy(search, make, whole=False), recorded, costs=costs)

    return {(name, search): [found(search, each) for each in problems] for search in strategies}


def row(found: Sequence[SimulationResult]) -> list[str]:
    """Return the cells of a table: sizes, losses in percent, binaries, configs, seconds."""
    losses = [100.0 * (1.0 if each.loss is None else each.loss) for each in found]
    figures = (lambda each: each.compiled, lambda each: len(each.measured), lambda each: each.seconds)
    means = [mean(figure(each) for each in found) for figure in figures]
    return [
        str(len(found)),
        *(f"{loss:.2f}" for loss in (mean(losses), percentile(losses, 0.95), max(losses))),
        *(f"{each:.{digits}f}" for each, digits in zip(means, (0, 0, 1), strict=True)),
    ]


HEAD = ["sizes", "search", "number", "mean loss %", "95th percentile", "worst", "binaries", "configs", "s"]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("recorded", metavar="RECORDED", help="a folder of recorded tables")
    p.add_argument("--also", metavar="FOLDER", help="also learn from these tables")
    p.add_argument("--every", type=int, default=1, metavar="N", help="search every N-th size of a case")
    p.add_argument("--parts", type=int, nargs="+", default=range(_PARTS), help="parts that are held out (default: all)")
    p.add_argument("--cases", nargs="+", default=["held out", "other GPU", "no model"], help="(default: all)")
    options = p.parse_args(argv)
    try:
        problems = [each for each in recorded_problems(options.recorded) if each.us and each.whole]
        others = [each for each in recorded_problems(options.also) if each.us] if options.also else []
        costs = assumed_costs_of(problems)
        found: dict[tuple[str, str], list[SimulationResult]] = {}
        for case in cases(problems, others, options.cases, options.every, options.parts):
            for key, its in searched(case, costs).items():
                found.setdefault(key, []).extend(its)
    except GenkernError as error:
        sys.exit(f"error: {error}")
    print(table(HEAD, [[*key, *row(its)] for key, its in found.items()]))


if __name__ == "__main__":
    main()
