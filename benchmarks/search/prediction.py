"""How far predicted times are off: sizes by absolute times that did not see their M, N and K, and whether they rise.

    python -m benchmarks.search.prediction [--models FOLDER]

Absolute times are fitted by folds over M, N and K on results/recorded and on the winners of results/nvidia_h200 and
results/nvidia_h100, so that each size is judged by a fit without it. The ranking that tells what a config loses is the
shipped model's, which has seen the sizes; --models takes those of `genkern train --folds N --models FOLDER`, which have
not. It takes some ten minutes of a core.

Printed for each GPU: the median of predicted over measured time, P90 of |predicted / measured - 1|, and the share of
measured times in the interval: of each recorded size's fastest config, of all configs of its finals, and of winners in
results/. Then pairs of sizes of which one has no smaller M, N and K: the share whose predicted best time falls.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_named
from genkern.gemm.problem import GemmProblem
from genkern.recorded.folds import read_folds
from genkern.recorded.load import recorded_problems
from genkern.recorded.training_times import (
    FOLDS,
    KnownTimes,
    Ranking,
    fold_times,
    known_times_of,
    result_files,
    winners_of,
)
from genkern.search.guided.model import learned_of
from genkern.search.guided.times import INTERVAL_SHARE, Times, times_of

_RECORDED = ("results/recorded", "results/recorded/searched")
_WINNERS = ("results/nvidia_h200", "results/nvidia_h100")
_ARCH = "sm_90"
# Of recorded sizes that a search measured in part, one of so many is judged: all of the others are learned from.
_JUDGED = 4
_PAIRS = 20_000
_MOST_FALL = 0.02


@dataclass(frozen=True)
class Judged:
    """Of one config: predicted over measured time, and whether the interval holds the measured one."""

    ratio: float
    is_inside: bool


def judged_config(times: Times, ranking: Ranking, known: KnownTimes, configs: Sequence[Config]) -> list[Judged]:
    """Each config's prediction beside its measured time."""
    us, interval = times.predicted(known.problem, ranking.octaves(known.problem, configs, known.gpu), known.gpu)
    assert interval is not None
    measured = np.array([known.us[config] for config in configs])
    inside = (interval[0] <= measured) & (measured <= interval[1])
    return [Judged(ratio, is_in) for ratio, is_in in zip((us / measured).tolist(), inside.tolist(), strict=True)]


def judged_sets(known: Sequence[KnownTimes], rankings: dict[object, Ranking]) -> dict[str, list[Judged]]:
    """By the name of a set of configs, how each was predicted by absolute times that had not seen its size."""
    usual = Ranking(learned_of(_ARCH))  # type: ignore[arg-type]
    found: dict[str, list[Judged]] = defaultdict(list)
    for times, its in fold_times(known, usual):
        for place, each in enumerate(its):
            problem = each.problem
            ranking = rankings.get((problem.M, problem.N, problem.K), usual)
            if each.is_winner:
                found[f"{each.gpu.name}, winners in results/"] += judged_config(times, ranking, each, list(each.us))
                continue
            if not each.whole and place % _JUDGED:
                continue
            of = "whole spaces" if each.whole else "searched sizes"
            best = min(each.us, key=each.us.__getitem__)
            found[f"{each.gpu.name}, {of}, fastest config"] += judged_config(times, ranking, each, [best])
            found[f"{each.gpu.name}, {of}, configs of finals"] += judged_config(times, ranking, each, list(each.us))
    return dict(sorted(found.items()))


def table(sets: dict[str, list[Judged]]) -> Iterator[str]:
    """The lines of the table."""
    width = max(map(len, sets))
    yield f"{'':<{width}}  {'number':>6}  {'median':>6}  {'P90 of error':>12}  {'in interval':>11}"
    for name, judged in sets.items():
        ratios = np.array([each.ratio for each in judged])
        p90 = float(np.quantile(np.abs(ratios - 1), 0.9))
        inside = float(np.mean([each.is_inside for each in judged]))
        yield f"{name:<{width}}  {len(judged):>6}  {np.median(ratios):>6.3f}  {p90:>11.1%}  {inside:>10.1%}"


def pairs(count: int) -> Iterator[tuple[GemmProblem, GemmProblem]]:
    """Sizes drawn by a seed, and for each one that is as large or larger in M, N and K, aligned alike."""
    random = np.random.default_rng(0)

    def drawn() -> GemmProblem:
        m = int(2 ** random.uniform(0, 13))
        n, k = (64 * int(2 ** random.uniform(0, 9)) for _ in "nk")
        return GemmProblem(m, n, k)

    for _ in range(count):
        one = drawn()
        grown = {side: max(getattr(one, side), getattr(drawn(), side)) for side in "MNK" if random.random() < 0.6}
        yield one, replace(one, **grown)


def falls(count: int) -> tuple[int, int, float]:
    """Of so many pairs how many predicted best times fall, and by more than 2 %, and the largest fall."""
    times, gpu = times_of(_ARCH), gpu_named("NVIDIA H200")
    assert times is not None
    assert gpu is not None
    octaves = [[times.best_octaves_of(each, gpu) for each in pair] for pair in pairs(count)]
    ratios = 2.0 ** np.array([larger - smaller for smaller, larger in octaves])
    return int((ratios < 1 - 1e-9).sum()), int((ratios < 1 - _MOST_FALL).sum()), float(1 - ratios.min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", metavar="FOLDER", help="rankings that do not know the sizes they are asked about")
    arguments = parser.parse_args()
    root = Path(__file__).parents[2]
    known = [each for path in _RECORDED for each in known_times_of(recorded_problems(str(root / path)))]
    known += [each for path in _WINNERS for file in result_files(str(root / path)) for each in winners_of(file)]
    rankings: dict[object, Ranking] = {}
    if arguments.models:
        models = read_folds(arguments.models)
        of_model = {id(model): Ranking(model) for model in models.values()}
        rankings = {size: of_model[id(model)] for size, model in models.items()}
    print(f"{len(known)} sizes, {FOLDS} folds; intervals are to hold {INTERVAL_SHARE:.0%}", flush=True)
    print("\n".join(table(judged_sets(known, rankings))), flush=True)
    fallen, far, largest = falls(_PAIRS)
    print(f"of {_PAIRS} pairs {fallen} best times fall, {far} by more than {_MOST_FALL:.0%}; at most {largest:.2%}")


if __name__ == "__main__":
    main()
