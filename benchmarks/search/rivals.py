"""How good what a search has found is after so many binaries: genkern's strategies and its peers' on recorded truth.

    genkern train RECORDED --also SEARCHED --folds 8 --models FOLDS
    python -m benchmarks.search.rivals RECORDED --models FOLDS --kept CURVES.jsonl -o TABLE.csv --plot LOSS.svg

RECORDED is a folder of recorded tables (results/recorded), or what else `genkern replay` takes. Every rival is a
strategy that is asked for one binary after another and told its times, as they were recorded; a binary brings all its
GROUP_SIZE_M and SPLIT_K (guided asks for one first, and for the others of its best in the end). Tried is what was asked
for, also where its compile was refused or its launch lost. The loss is the best time of a right result so far over the
best of the whole recorded space, less 1, by first measurements; of nothing yet, and above 100 %, it counts as 100 %. A
rival that has ended keeps its loss. Rivals that draw numbers run with several seeds, and count with the mean of each
size.

With --models, guided, zero and predicted choose at each size by a model that was trained without it; else by the one
that is shipped, which knows recorded sizes.

Peers with lists (Inductor, QuACK, nvMatmulHeuristics: benchmarks/search/peer_configs.py) are judged on the bf16 sizes
for which the space has kernels like theirs. Kernel Tuner's strategies (benchmarks/search/kernel_tuner_peer.py) and
nvMatmulHeuristics take part where they are installed. Hard sizes are those that models of time get wrong, of each kind
and all of them: M = 2, N or K below 512, odd N, M = 1 in other layouts than TN. With --kept a peer's curve that is
there is not made again, since their strategies take minutes: with other versions of them, or of peer_configs.py, begin
another file.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import pandas

from benchmarks.common.figures import percentile, table
from benchmarks.common.kept import Kept
from benchmarks.search import peer_configs
from benchmarks.search.kernel_tuner_peer import STRATEGIES, kernel_tuner
from genkern.cli.recorded.replaying import HARD
from genkern.errors import GenkernError, InputError, ResultsError
from genkern.file_io import write_whole
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import problem_cells
from genkern.recorded.folds import Size, read_folds
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.training import size_of
from genkern.search.guided.guided import Guided
from genkern.search.guided.learned import Learned
from genkern.search.guided.predicted_order import PredictedOrder
from genkern.search.guided.zero import Zero
from genkern.search.limit import Allowance
from genkern.search.strategies import DEFAULT, ChosenStrategy, chosen_strategy
from genkern.search.strategy import Event, MakesStrategy, Strategy, Task, Unit, units_of
from genkern.tuning.simulation import SimulationResult, simulate

# Binaries after which a loss is shown; no rival gets more than the last.
AFTER = (8, 16, 32, 48, 64, 96, 128)
_SEEDS = 3
_MOST_LOSS = 1.0
_STYLES = ("-", "--", "-.")
_OF_ALL = "bf16 sizes that every rival takes"
_MEANT = (
    "Loss: time of the best right kernel found so far over that of the best of the whole recorded space, less 1, by "
    "first measurements; nothing found, or more than 100 %, counts as 100 %"
)
# Strategies that choose by the model, which takes part as the argument `learned`.
_BY_MODEL: Mapping[str, Callable[..., Strategy]] = {"guided": Guided, "zero": Zero, "predicted": PredictedOrder}
# By M, N and K the model that knows no such size.
Models = Mapping[Size, Learned]
# A problem and the device that it was recorded on.
Place = tuple[GemmProblem, str]


@dataclass(frozen=True)
class Rival:
    """A strategy for each seed, with the number of the seed; `listed` is for bf16 products alone. `ours` changes with
    genkern's code and models, so that its curves are not kept.
    """

    name: str
    make: Callable[[int], MakesStrategy]
    seeds: Sequence[int] = (0,)
    listed: bool = False
    ours: bool = False


@dataclass(frozen=True)
class Curve:
    """The loss after each binary that a rival tried at one size; empty where it had nothing to try."""

    losses: tuple[float, ...]

    def after(self, binaries: int) -> float:
        """The loss after so many, or after all of them where they are fewer."""
        return self.losses[min(binaries, len(self.losses)) - 1] if self.losses else _MOST_LOSS


class _Limited(Strategy):
    """Another strategy, of which no more than so many binaries are asked for."""

    def __init__(self, strategy: Strategy, most: int) -> None:
        self._strategy, self._allowance = strategy, Allowance(most, ())

    def ask(self, n: int) -> Sequence[Unit]:
        return self._allowance.take(n, self._strategy.ask)

    def tell(self, event: Event) -> None:
        self._strategy.tell(event)

    def drop(self) -> Sequence[Unit]:
        return self._allowance.forget(self._strategy.drop())


class RandomOrder(Strategy):
    """Asks for every unit once, in an order that depends only on the seed and the space."""

    def __init__(self, task: Task, seed: int) -> None:
        self._left = sorted(units_of(task.configs), key=lambda unit: unit.configs[0].name)
        random.Random(seed).shuffle(self._left)

    def ask(self, n: int) -> Sequence[Unit]:
        return [self._left.pop() for _ in range(min(n, len(self._left)))]


def rivals(searches: Iterable[str], most: int, seeds: int = _SEEDS, models: Models | None = None) -> list[Rival]:
    """Ours by the names of `--search`, by the `models` where there are any, and those peers that are installed."""
    drawn = range(seeds)
    found = [_ours(chosen_strategy(name), models) for name in searches]
    found.append(Rival("random order", lambda seed: lambda task: RandomOrder(task, seed), drawn))
    found += [
        Rival("Inductor's 21", lambda seed: peer_configs.listed(peer_configs.inductor), listed=True),
        Rival("Inductor's 21 and 8 with TMA", lambda seed: peer_configs.listed(peer_configs.inductor_tma), listed=True),
        Rival("QuACK's 44", lambda seed: peer_configs.listed(peer_configs.quack), listed=True),
    ]
    tried = Task(GemmProblem(256, 256, 256), gpu_for_arch("sm_90"), (), lambda unit: False)
    if _is_there("nvMatmulHeuristics", lambda: peer_configs.nv_matmul_heuristics(tried)):
        asked = peer_configs.nv_matmul_heuristics
        found += [
            Rival(f"nvMatmulHeuristics' {n}", lambda seed, n=n: peer_configs.listed(asked, n), listed=True)
            for n in (8, 16)
        ]
    if _is_there("Kernel Tuner", lambda: kernel_tuner("genetic_algorithm", most)):
        found += [
            Rival(f"Kernel Tuner: {name}", lambda seed, name=name: kernel_tuner(name, most, seed), drawn)
            for name in STRATEGIES
        ]
    return found


def _ours(chosen: ChosenStrategy, models: Models | None) -> Rival:
    make = _BY_MODEL.get(chosen.said.partition(":")[0])
    if models is None or make is None:
        return Rival(f"genkern: {chosen.said}", lambda seed: _with_number(chosen), ours=True)

    def by_model(task: Task) -> Strategy:
        model = models[task.problem.M, task.problem.N, task.problem.K]
        return make(replace(task, number=chosen.number), learned=lambda arch: model)

    return Rival(f"genkern: {chosen.said}, by models of other sizes", lambda seed: by_model, ours=True)


def _with_number(chosen: ChosenStrategy) -> MakesStrategy:
    return lambda task: chosen.make(replace(task, number=chosen.number))


def _is_there(name: str, use: Callable[[], object]) -> bool:
    try:
        use()
    except InputError as error:
        print(f"note: without {name}: {error}", file=sys.stderr)
        return False
    return True


def curve_of(rival: Rival, seed: int, recorded: RecordedProblem, most: int) -> Curve:
    """What the rival finds in a recorded space, one binary after another."""
    make = rival.make(seed)
    limited = ChosenStrategy(rival.name, lambda task: _Limited(make(replace(task, most=most)), most))
    return losses_of(simulate(limited, recorded, jobs=1, at_a_time=1), recorded)


def losses_of(found: SimulationResult, recorded: RecordedProblem) -> Curve:
    """The losses after each binary, in the order in which they were asked for."""
    right_us = {config: us for config, us in recorded.us.items() if config not in recorded.wrong}
    best_us = min(right_us.values())
    # Of copies that one was timed that stands in the record.
    us = {config: right_us.get(recorded.copies.get(config, config), math.inf) for config in found.measured}
    losses: list[float] = []
    tried: set[object] = set()
    so_far_us = math.inf
    for unit in found.asked:
        so_far_us = min([so_far_us, *(us[config] for config in unit.configs if config in us)])
        # Other configs of a binary that was tried before cost no binary.
        if unit.compiled in tried:
            losses.pop()
        tried.add(unit.compiled)
        losses.append(min(so_far_us / best_us - 1, _MOST_LOSS))
    return Curve(tuple(losses))


def is_hard(problem: GemmProblem) -> bool:
    """Whether it is one of the kinds that models of time get wrong."""
    return any(has(problem) for has in HARD.values())


def is_listed(problem: GemmProblem) -> bool:
    """Whether peers with lists have kernels for it: a bf16 product."""
    return (problem.op, problem.dtype_a, problem.dtype_b) == ("a16w16", "bf16", "bf16")


def key_of(rival: Rival, recorded: RecordedProblem, most: int) -> str:
    """By which a curve is known, and kept."""
    return f"{rival.name} {most} {len(rival.seeds)} {json.dumps(problem_cells(recorded.problem))} {recorded.run}"


def made(rivals: Sequence[Rival], recorded: RecordedProblem, kept: Container[str], most: int) -> dict[str, Any]:
    """The losses of each rival at this size, of all its seeds, by their keys; not those of peers that are kept."""
    takes_part = [rival for rival in rivals if is_listed(recorded.problem) or not rival.listed]
    new = [rival for rival in takes_part if rival.ours or key_of(rival, recorded, most) not in kept]
    return {
        key_of(rival, recorded, most): [list(curve_of(rival, seed, recorded, most).losses) for seed in rival.seeds]
        for rival in new
    }


Curves = Mapping[str, Mapping[Place, Sequence[Curve]]]


def losses_by_rival(curves: Curves, most: int) -> list[dict[str, str]]:
    """Rows of a table: over all sizes (`of`), over those that peers with lists take and those that all of them take,
    over the hard ones and others.
    """
    places = list(dict.fromkeys(place for of in curves.values() for place in of))
    parts = (
        ("All sizes", places),
        ("bf16 sizes", [place for place in places if is_listed(place[0])]),
        (_OF_ALL, taken_by_all(curves)),
        ("Hard sizes", [place for place in places if is_hard(place[0])]),
        ("Sizes that are not hard", [place for place in places if not is_hard(place[0])]),
        *((f"Hard: {kind}", [place for place in places if has(place[0])]) for kind, has in HARD.items()),
    )
    return [{"of": title, **row} for title, of in parts if of for row in _rows(curves, of, most)]


def taken_by_all(curves: Curves) -> list[Place]:
    """Where every rival had something to try: there they can be compared."""
    tried = [[place for place, each in of.items() if any(curve.losses for curve in each)] for of in curves.values()]
    return [place for place in tried[0] if all(place in others for others in tried[1:])] if tried else []


def report(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows in Markdown, a table for each kind of sizes."""
    parts: dict[str, list[list[str]]] = {}
    for row in rows:
        kind, *cells = row.values()
        parts.setdefault(kind, []).append(cells)
    return "\n".join(f"## {kind}\n\n{table([*rows[0]][1:], part)}\n" for kind, part in parts.items())


def _rows(curves: Curves, places: Sequence[Place], most: int) -> Iterator[dict[str, str]]:
    """A row a rival, over those of these sizes at which it has something to try."""
    after = [binaries for binaries in AFTER if binaries <= most]
    for name, of in curves.items():
        here = [of[place] for place in places if place in of and any(curve.losses for curve in of[place])]
        if not here:
            continue
        ends = [mean(curve.after(most) for curve in each) for each in here]
        means = {f"mean loss % after {n}": mean(mean(curve.after(n) for curve in each) for each in here) for n in after}
        tried = mean(mean(len(curve.losses) for curve in each) for each in here)
        last = {"median %": percentile(ends, 0.5), "95th percentile %": percentile(ends, 0.95), "worst %": max(ends)}
        before, behind = ({of: f"{100 * loss:.2f}" for of, loss in losses.items()} for losses in (means, last))
        yield {"rival": name, "sizes": str(len(here)), **before, "binaries tried": f"{tried:.0f}", **behind}


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def plot(curves: Curves, most: int, path: str) -> None:
    """Mean loss against binaries tried, a line a rival, over the sizes that it takes and over those that all take, as a
    picture of the kind that the path's suffix says.

    Raises InputError where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install matplotlib") from None
    mpl.use("Agg")
    # The same curves give the same file.
    mpl.rcParams["svg.hashsalt"] = "rivals"
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(14, 7), sharey=True, layout="constrained")
    colours = pyplot.get_cmap("tab20")
    shared = taken_by_all(curves)
    parts = ((both[0], "Sizes that each takes", None), (both[1], f"{len(shared)} {_OF_ALL}", shared))
    for axes, title, places in parts:
        for number, (name, of) in enumerate(curves.items()):
            here = [each for place, each in of.items() if places is None or place in places]
            here = [each for each in here if any(curve.losses for curve in each)]
            xs = range(1, min(max((len(curve.losses) for each in here for curve in each), default=0), most) + 1)
            ys = [100 * mean(mean(curve.after(x) for curve in each) for each in here) for x in xs]
            style = {"color": colours(number % 20), "linestyle": _STYLES[number % len(_STYLES)]}
            # One binary is no line.
            marker = "o" if len(xs) == 1 else None
            axes.plot(xs, ys, label=f"{name} ({len(here)} sizes)", linewidth=1.5, marker=marker, **style)
        axes.set(xscale="log", yscale="log", xlabel="binaries tried", title=title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.grid(visible=True, which="both", alpha=0.25)
    both[0].set_ylabel("mean loss, %")
    figure.suptitle(_MEANT, fontsize=9)
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main(argv: Sequence[str] | None = None) -> None:
    """Judge all rivals on what is recorded, and write what that gives."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("recorded", metavar="RECORDED", help="a folder of recorded tables")
    p.add_argument(
        "-o", "--output", metavar="FILE", help="the tables as one CSV (default: in Markdown, on the terminal)"
    )
    p.add_argument("--plot", metavar="FILE", help="a picture, .svg or .png")
    p.add_argument("--kept", metavar="FILE", help="JSON lines of the peers' curves, which are not made again")
    p.add_argument("--search", action="append", metavar="NAME", help="a strategy of ours (default: some of them)")
    p.add_argument("--models", metavar="FOLDER", help="models that do not know the sizes that they are asked for")
    p.add_argument("--most", type=int, default=AFTER[-1], metavar="N", help="binaries a rival may try (default: 128)")
    p.add_argument("--seeds", type=int, default=_SEEDS, metavar="N", help="seeds of rivals that draw (default: 3)")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes")
    options = p.parse_args(argv)
    searches = options.search or [DEFAULT, "predicted", "zero"]
    try:
        problems = [each for each in recorded_problems(options.recorded) if each.us and each.whole]
        models = _models(options.models, problems) if options.models else None
        all_rivals = rivals(searches, options.most, options.seeds, models)
        kept = Kept(options.kept)
        curves = _curves(all_rivals, problems, kept, options.most, options.jobs)
        rows = losses_by_rival(curves, options.most)
        if options.output:
            write_whole(options.output, pandas.DataFrame(rows).to_csv(index=False))
        else:
            print(f"{_MEANT}.\n{_head(problems)}\n{report(rows)}")
        if options.plot:
            plot(curves, options.most, options.plot)
    except GenkernError as error:
        sys.exit(f"error: {error}")


def _head(problems: Sequence[RecordedProblem]) -> str:
    gpus = ", ".join(sorted({each.gpu.name for each in problems}))
    units = sum(len(each.units) for each in problems)
    return f"{len(problems)} sizes on {gpus}, {units:,} binaries.\n"


def _models(path: str, problems: Sequence[RecordedProblem]) -> Models:
    """Raises ResultsError where a size is not among those that a model does not know."""
    models = read_folds(path)
    for each in problems:
        if size_of(each) not in models:
            raise ResultsError(f"{path}: no model that does not know {each.problem.size}; train them of these tables")
    return models


# What forked processes find in their parent.
_SHARED: dict[str, Any] = {}


def _made(place: int) -> dict[str, Any]:
    return made(_SHARED["rivals"], _SHARED["problems"][place], _SHARED["kept"], _SHARED["most"])


def _curves(
    all_rivals: Sequence[Rival], problems: Sequence[RecordedProblem], kept: Kept, most: int, jobs: int
) -> Curves:
    peers = {key_of(rival, each, most) for rival in all_rivals if not rival.ours for each in problems}
    known = {key: entry["losses"] for key in peers if (entry := kept.of(key)) is not None}
    _SHARED.update(rivals=all_rivals, problems=problems, kept={*known}, most=most)
    # Collections of what the processes share would copy it, and take most of their time.
    gc.freeze()
    with ProcessPoolExecutor(max(1, jobs), get_context("fork")) as pool:
        for found in pool.map(_made, range(len(problems))):
            for key in found.keys() & peers:
                kept.add(key, {"losses": found[key]})
            known |= found
    curves: dict[str, dict[Place, list[Curve]]] = {}
    for rival in all_rivals:
        for each in problems:
            if (losses := known.get(key_of(rival, each, most))) is not None:
                of_seeds = [Curve(tuple(map(float, of_seed))) for of_seed in losses]
                curves.setdefault(rival.name, {})[each.problem, each.gpu.name] = of_seeds
    return curves


if __name__ == "__main__":
    main()
