"""`genkern train`: fits a model of times to recorded spaces, and judges it on sizes that it was not fitted to."""

from __future__ import annotations

import argparse
import io
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.recorded.replaying import Replayed, table
from genkern.errors import InputError, OutputError, ResultsError
from genkern.file_io import require_writable, shown_path, write_bytes_whole
from genkern.gemm.problem import GemmProblem
from genkern.recorded.assumed_costs import assumed_costs_of
from genkern.recorded.folds import FoldsFolder
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.training import Sample, fold_models, require_libraries, sampled, size_of, trained
from genkern.recorded.training_times import FOLDS, Ranking, fitted_times, known_times_of, result_files, winners_of
from genkern.search.guided.guided import Guided
from genkern.search.guided.judged import Judged
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import MODEL_VARIABLE, ranked
from genkern.search.guided.predicted_order import PredictedOrder
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Strategy, Task
from genkern.tuning.simulation import simulate

_folds = number("a number of folds from 2 to 100", 2, 100, integer=True)


def parse_train(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern train`. Raises InputError; SystemExit(0) after printing for --help."""
    options = train_parser().parse_args(argv)
    if options.models and not options.folds:
        raise InputError("--models FOLDER is for the models of folds: give --folds N too")
    if not (options.output or options.folds):
        raise InputError("nothing to do: give -o FILE.npz to write a model, --folds N to judge it, or both")
    if options.times_only and (options.folds or not options.output):
        raise InputError("--times_only replaces the absolute times of the model -o FILE: give -o, and no --folds")
    return options


def train_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern train",
        description="Learn from recorded spaces how long kernels take. Runs on a GPU of its architecture use the model "
        f"in the file that {MODEL_VARIABLE} names instead of the shipped one.",
    )
    group = p.add_argument_group("what to learn from, and what to write")
    group.add_argument("recorded", metavar="RECORDED", help="recorded tables of one architecture: a file, or a folder")
    group.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="RECORDED",
        help="also learn from these tables; they do not judge the model",
    )
    group.add_argument(
        "--winners",
        action="append",
        default=[],
        metavar="RESULTS",
        help="also learn absolute times from the measured winners of these results files or folders",
    )
    group.add_argument(
        "--times_only", action="store_true", help="only fit the absolute times of the model -o FILE again"
    )
    group.add_argument("-o", "--output", metavar="FILE", help="write the model of all sizes, as NumPy arrays (.npz)")
    group.add_argument(
        "--folds",
        type=_folds,
        metavar="N",
        help="judge the model: search each size whose whole space was measured by a model of the other N-1 of N parts "
        "of the sizes; with -o the file stores how good first choices were",
    )
    group.add_argument(
        "--models", metavar="FOLDER", help="write the models of the folds, with the sizes that each was not fitted to"
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_train(options: argparse.Namespace, console: Console) -> int:
    """Judge the model, then write it. Raises InputError, ResultsError or OutputError."""
    require_libraries()
    if options.output:
        _require_model_or_none(options.output)
        require_writable(options.output)
    folder = FoldsFolder(options.models) if options.models else None
    problems, *more = (
        [recorded for recorded in recorded_problems(path) if recorded.us] for path in (options.recorded, *options.also)
    )
    others = list(itertools.chain(*more))
    archs = sorted({recorded.gpu.arch for recorded in (*problems, *others)})
    if len(archs) != 1:
        paths = ", ".join(map(shown_path, (options.recorded, *options.also)))
        raise ResultsError(f"{paths}: times of {', '.join(archs) or 'no GPU'}, not of one")
    known = known_times_of([*problems, *others])
    known += [each for path in options.winners for file in result_files(path) for each in winners_of(file)]
    known = [each for each in known if each.gpu.arch == archs[0]]
    if options.times_only:
        times = fitted_times(known, Ranking(Learned.read(options.output)))
        write_bytes_whole(options.output, times.put_into(Path(options.output).read_bytes()))
        console.print(f"{shown_path(options.output)}: absolute times of {len(known)} sizes")
        return 0
    samples = [sampled(recorded) for recorded in (*problems, *others)]
    judged: Judged | None = None
    if options.folds:
        replayed, judged = _judged(problems, others, samples, options.folds, folder)
        for name in dict.fromkeys(each.strategy for each in replayed):
            console.print("\n".join([name, *table([each for each in replayed if each.strategy == name]), ""]))
        console.print(
            f"share of the best speed that the model's first choice reaches, without any measurement: {judged}"
        )
    if options.output:
        data, learned = io.BytesIO(), trained(samples, archs[0])
        learned.write(data)
        if judged is not None:
            judged.add_to(data)
        written = data.getvalue()
        if len({(each.problem.M, each.problem.N, each.problem.K) for each in known}) >= FOLDS:
            written = fitted_times(known, Ranking(learned)).put_into(written)
        else:
            console.print(f"note: no absolute times: they need {FOLDS} sizes with finals")
        write_bytes_whole(options.output, written)
        console.print(f"{shown_path(options.output)}: {len(samples)} sizes, {len(written) / 1e6:.2f} MB")
    return 0


def _require_model_or_none(path: str) -> None:
    """Raise OutputError if `path` is a file other than a model."""
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            Learned.read(path)
        except ResultsError:
            raise OutputError(f"{shown_path(path)} exists and is not a model of times: give another -o") from None


def _judged(
    problems: Sequence[RecordedProblem],
    others: Sequence[RecordedProblem],
    samples: Sequence[Sample],
    folds: int,
    folder: FoldsFolder | None,
) -> tuple[list[Replayed], Judged]:
    """Replay every size with a model that was not fitted to it; return the replays, and how good first choices are.

    The models are also written to `folder`, unless it is None. Only sizes whose whole space was measured are replayed,
    since only they have a known best; the other sizes are only learned from. Raises ResultsError if no space was
    measured completely.
    """
    if not any(map(_judges, problems)):
        raise ResultsError("no size's whole space was measured, so that the best is unknown: record one")
    costs = assumed_costs_of(problems)
    found: list[Replayed] = []
    shares: list[tuple[GemmProblem, float]] = []
    for model, its in fold_models(problems, others, samples, folds):
        if folder is not None:
            folder.add(model, map(size_of, its))
        learned = partial(_only, model)
        for recorded in filter(_judges, its):
            for name, make in _REPLAYED.items():
                strategy = ChosenStrategy(name, partial(make, learned=learned), whole=False)
                found.append(Replayed(name, recorded, simulate(strategy, recorded, costs=costs)))
            shares.append((recorded.problem, _share_of_best(recorded, model)))
    return found, Judged.of(shares)


def _predicted_first(task: Task, learned: Callable[[str], Learned | None]) -> Strategy:
    return PredictedOrder(replace(task, number=_FIRST), learned)


# The strategies that are judged, by name.
_FIRST = 16
_REPLAYED: Mapping[str, Callable[..., Strategy]] = {"guided": Guided, f"predicted:{_FIRST}": _predicted_first}


def _only(model: Learned, arch: str) -> Learned:
    return model


def _judges(recorded: RecordedProblem) -> bool:
    """Return True if the best config is known: the whole space was measured, and a config is correct."""
    return recorded.whole and any(config not in recorded.wrong for config in recorded.us)


def _share_of_best(recorded: RecordedProblem, model: Learned) -> float:
    """Return the speed of the model's first choice relative to the best config; at most 1.

    Only configs that run and are correct count. The best config is the fastest of the finals, which a run would choose.
    Without finals it is the fastest of all first measurements. This time is too small by chance, being the smallest of
    thousands (by 1.8 % in the mean of the recorded sizes).
    """
    us = {config: each for config, each in recorded.us.items() if config not in recorded.wrong}
    order = ranked(recorded.problem, recorded.configs, recorded.gpu, partial(_only, model))
    choice = next(config for config in order if config in us)
    finals = {config: each for config, each in recorded.final_us.items() if config in us}
    best = min(finals or us, key=(finals or us).__getitem__)
    times = finals if choice in finals else us
    return min(1.0, times[best] / times[choice])
