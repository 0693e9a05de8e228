"""What the order of the screening, its rule for siblings and --patience save. Replays runs with --exhaustive.

    genkern -i SIZES.yaml -o RESULTS.yaml --exhaustive
    python benchmarks/screening_order.py RESULTS.yaml.journal.previous ...

Needs no GPU itself. Siblings are configs that differ in GROUP_SIZE_M alone: they are launched from one binary, and left
out once the first of them took a factor times the best so far. Each policy is an order, such a factor, and after how
many binaries that brought nothing faster it ends (0: never). "launched" and "time" are shares of what launching
everything takes, each config weighing what one call of it took; "binaries" is the share that is compiled. "best" is the
best config that a policy finds over the best of all. As if every binary were ready when its turn comes; in a run the
order is that of the compiles. A run without --exhaustive has left siblings out itself.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from figures import table
from workbench import errors_end

from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import read_journal
from genkern.search.patience import Patience
from genkern.search.predict import promising_first
from genkern.space.prune import prune
from genkern.space.space import load_space

# Before the predicted order: the space's order, and siblings left out at twice the best.
POLICIES = (
    *(("space", 2.0, 0), ("space", 1.5, 0), ("predicted", 2.0, 0), ("predicted", 1.5, 0), ("predicted", 1.3, 0)),
    *(("predicted", 1.5, patience) for patience in (64, 128, 256, 512)),
)


@dataclass(frozen=True)
class Screening:
    """One size on one GPU: the microseconds of each config that was measured."""

    problem: GemmProblem
    gpu: Gpu
    us: Mapping[Config, float]


@dataclass(frozen=True)
class Played:
    """What a policy launches and compiles, of everything, and the best time that it finds over the best of all."""

    launched: float
    time: float
    binaries: float
    best: float


def screenings(paths: Sequence[str]) -> Iterator[Screening]:
    """Every size with measured configs in these journals."""
    for path in paths:
        journal = read_journal(path)
        gpu = gpu_for_arch(str(journal.header.get("arch", "")))
        for problem, facts in journal.facts.items():
            measured = facts.screened.values()
            us = {Config.parse(found.config): found.duration_us for found in measured if found.duration_us is not None}
            if us:
                yield Screening(problem, gpu, us)


def space_order(screening: Screening) -> list[Config]:
    """The configs as the architecture's own space lists them, which was the order before the predicted one."""
    problem, gpu = screening.problem, screening.gpu
    kept = prune(load_space(None, gpu.arch, problem.op), problem, gpu).kept
    places = {config: place for place, config in enumerate(kept)}
    return sorted(screening.us, key=lambda config: places.get(config, len(places)))


def play(screening: Screening, order: Sequence[Config], factor: float, most: int = 0) -> Played:
    """Launch in `order`; leave siblings out at `factor` times the best so far; end after `most` binaries in vain."""
    us, best_us, spent_us, launched = screening.us, math.inf, 0.0, 0
    patience, compiled = Patience(most), set()
    first_us: dict[Config, float] = {}
    for config in order:
        siblings = replace(config, GROUP_SIZE_M=1)
        compiled.add(binary := _binary(config))
        if first_us.get(siblings, 0.0) > factor * best_us:
            continue
        first_us.setdefault(siblings, us[config])
        best_us = min(best_us, us[config])
        spent_us, launched = spent_us + us[config], launched + 1
        if patience.ends(binary, us[config]):
            break
    binaries = len(compiled) / len({_binary(config) for config in us})
    return Played(launched / len(us), spent_us / sum(us.values()), binaries, best_us / min(us.values()))


def _binary(config: Config) -> str:
    """What configs with the same binary have in common: the order of tiles and the number of splits are arguments."""
    return replace(config, GROUP_SIZE_M=1, SPLIT_K=min(2, config.SPLIT_K)).name


def report(found: Sequence[Screening]) -> str:
    """Markdown: a line for each size and policy."""
    rows = []
    for screening in found:
        predicted = promising_first(screening.problem, screening.us, screening.gpu)
        orders = {"space": space_order(screening), "predicted": predicted}
        for name, factor, patience in POLICIES:
            played = play(screening, orders[name], factor, patience)
            shares = (
                *(f"{share:.1%}" for share in (played.launched, played.time, played.binaries)),
                f"{played.best:.4f}",
            )
            rows.append((screening.problem.size, f"{len(screening.us):,}", name, factor, patience, *shares))
    columns = ("size", "configs", "order", "siblings up to", "patience", "launched", "time", "binaries", "best")
    return table(columns, rows)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", help="journals of runs with measured times")
    arguments = parser.parse_args(argv)
    with errors_end():
        found = list(screenings(arguments.journals))
        if not found:
            where = ", ".join(arguments.journals)
            raise ResultsError(f"{where}: no config has a measured time; give journals of runs on a GPU")
        print(report(found))


if __name__ == "__main__":
    main(sys.argv[1:])
