"""What the order of the screening, its rule for siblings and --patience save. Replays runs with --exhaustive.

    genkern -i SIZES.yaml -o RESULTS.yaml --exhaustive
    python -m benchmarks.search.screening_order RESULTS.yaml.journal.previous ...

Needs no GPU itself. Siblings are configs that differ in GROUP_SIZE_M alone: they are launched from one binary, and left
out once the first of them took a factor times the best so far. Each policy is an order, such a factor, and after how
many binaries that brought nothing faster it ends (0: never). "forms" is the predicted order with the first binaries
of each form before all others, as it is with --patience. "launched" and "time" are shares of what launching
everything takes, each config weighing what one call of it took; "binaries" is the share that is compiled. "best" is the
best config that a policy finds over the best of all. As if every binary were ready when its turn comes; in a run the
order is that of the compiles, and what was under way when it ended is measured too. A run without --exhaustive has left
siblings out itself.

Behind the table, over all sizes: what a run without options measures and loses against everything (prediction), and
one with --patience N (patience_N): the shares of configs measured and of binaries compiled, and by how much the
best config found is slower than the best of all, as the geometric mean and at worst.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.common.figures import geomean, table
from benchmarks.common.workbench import errors_end
from genkern.errors import ResultsError
from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import read_journal
from genkern.search.plain.patience import Patience, forms_first
from genkern.search.predict import promising_first
from genkern.search.screening import SCREENING
from genkern.space.prune import prune
from genkern.space.space import load_space

# What a run without options does.
DEFAULT = ("predicted", SCREENING.sibling_factor or math.inf, 0)
PATIENCES = (32, 48, 64, 96, 128, 192, 256)
PATIENT = {most: ("forms", DEFAULT[1], most) for most in PATIENCES}
# Before the predicted order: the space's order, and siblings left out at twice the best.
POLICIES = (
    *(("space", 2.0, 0), ("space", 1.5, 0), ("predicted", 2.0, 0), DEFAULT, ("predicted", 1.3, 0)),
    # What the forms first cost.
    ("predicted", DEFAULT[1], 192),
    *PATIENT.values(),
)


@dataclass(frozen=True)
class Screening:
    """One size on one GPU: the microseconds of each config that was measured."""

    problem: GemmProblem
    gpu: Gpu
    us: Mapping[Config, float]

    @property
    def binaries(self) -> int:
        return len({compiled_of(config) for config in self.us})


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


def orders_of(screening: Screening) -> dict[str, list[Config]]:
    """The configs in each order, those that share their binaries together: these are there at once."""
    predicted = promising_first(screening.problem, screening.us, screening.gpu)
    orders = {"space": space_order(screening), "predicted": predicted, "forms": forms_first(predicted)}
    for name, order in orders.items():
        sharers: dict[Hashable, list[Config]] = {}
        for config in order:
            sharers.setdefault(compiled_of(config), []).append(config)
        orders[name] = [config for these in sharers.values() for config in these]
    return orders


def play(screening: Screening, order: Sequence[Config], factor: float, most: int = 0) -> Played:
    """Launch in `order`; leave siblings out at `factor` times the best so far; end after `most` binaries in vain.

    The binary whose launch ends it is launched with all its configs: they were handed over together.
    """
    us, best_us, spent_us, launched = screening.us, math.inf, 0.0, 0
    patience, ended, compiled = Patience(most), False, set()
    first_us: dict[Config, float] = {}
    for config in order:
        siblings, binary = replace(config, GROUP_SIZE_M=1), compiled_of(config)
        if ended and binary not in compiled:
            break
        compiled.add(binary)
        if first_us.get(siblings, 0.0) > factor * best_us:
            continue
        first_us.setdefault(siblings, us[config])
        best_us = min(best_us, us[config])
        spent_us, launched = spent_us + us[config], launched + 1
        ended |= patience.ends(str(binary), us[config])
    binaries = len(compiled) / screening.binaries
    return Played(launched / len(us), spent_us / sum(us.values()), binaries, best_us / min(us.values()))


def totals(name: str, found: Sequence[Screening], played: Sequence[Played]) -> list[str]:
    """Lines of what a policy takes and loses over all sizes, the keys beginning with its name."""

    def share(parts: Sequence[float], wholes: Sequence[int]) -> str:
        return f"{sum(part * whole for part, whole in zip(parts, wholes, strict=True)) / sum(wholes):.4f}"

    best = [each.best for each in played]
    return [
        f"{name}_share: {share([each.launched for each in played], [len(one.us) for one in found])}",
        f"{name}_binaries: {share([each.binaries for each in played], [one.binaries for one in found])}",
        f"{name}_loss: {geomean(best) - 1:.4f}",
        f"{name}_worst: {max(best) - 1:.4f}",
    ]


def report(found: Sequence[Screening]) -> str:
    """Markdown, a line for each size and policy; then a line `key: value` for each total."""
    rows, all_played = [], []
    for screening in found:
        orders = orders_of(screening)
        all_played.append({policy: play(screening, orders[policy[0]], *policy[1:]) for policy in POLICIES})
        for (name, factor, patience), played in all_played[-1].items():
            shares = (
                *(f"{share:.1%}" for share in (played.launched, played.time, played.binaries)),
                f"{played.best:.4f}",
            )
            rows.append((screening.problem.size, f"{len(screening.us):,}", name, factor, patience, *shares))
    columns = ("size", "configs", "order", "siblings up to", "patience", "launched", "time", "binaries", "best")
    lines = [table(columns, rows), "", f"sizes: {len(found)}"]
    lines.append(f"configs: {sum(len(screening.us) for screening in found)}")
    lines.append(f"binaries: {sum(screening.binaries for screening in found)}")
    for name, policy in {"prediction": DEFAULT, **{f"patience_{most}": PATIENT[most] for most in PATIENCES}}.items():
        lines += totals(name, found, [played[policy] for played in all_played])
    return "\n".join(lines)


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
