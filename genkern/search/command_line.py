"""What a strategy adds to a command line: which one it is, and how much it is to measure."""

from __future__ import annotations

import argparse

from genkern.arguments import number
from genkern.errors import InputError
from genkern.search.limit import Limit
from genkern.search.strategies import (
    EXHAUSTIVE,
    PATIENT,
    PREDICTED,
    STRATEGIES,
    ChosenStrategy,
    chosen_strategy,
    shown_names,
)

_POSITIVE = number("a whole number from 1 to 100000", 1, 100_000, integer=True)


def add_strategy(group: argparse._ArgumentGroup) -> None:
    """The options of which `asked_strategy` and `asked_limit` are made."""
    group.add_argument(
        *("--search", "--strategy"),
        metavar="NAME|FILE.py",
        help="what is compiled and measured, in which order, until when. guided: what a model of times promises, "
        "corrected by the size's own; zero: the model's first choice alone; predicted: everything (N kernels) as the "
        "model prefers; patience: four kernels of each form of a family, then in the predictor's order, until N in a "
        "row brought nothing faster; racing: some kernels of each form, then more of the best forms; random: "
        "everything, in an order drawn from SEED; exhaustive: everything, equal machine code too; cached: what needs "
        "no compile; spread: from all over the space. "
        "Or a file with strategy(task) (genkern/search/strategy.py). "
        f"({', '.join(shown_names())}; default: {next(iter(STRATEGIES))}; without a GPU nothing is searched, and the "
        "model's first choice wins, unless --compile is given)",
    )
    group.add_argument("--exhaustive", action="store_true", help="short for --search exhaustive")
    group.add_argument(
        "--patience", type=_POSITIVE, metavar="N", help="short for --search patience:N (default: as --search says)"
    )
    group.add_argument(
        "--budget",
        metavar="SECONDSs|N",
        help="a hard limit of a size's search, after which the best so far is timed again, checked and written. 30s: "
        "seconds from its turn on a GPU, one kernel at least; 200: kernels (binaries) measured (default: none)",
    )


def asked_limit(options: argparse.Namespace, strategy: ChosenStrategy) -> Limit:
    """The limit of a search that the options say. Raises InputError where it is none, or contradicts the strategy."""
    if options.budget is None:
        return Limit()
    everything = "--protocol tune_gemm" if options.protocol == "tune_gemm" else f"--search {strategy.name}"
    if strategy.every or options.protocol == "tune_gemm":
        raise InputError(f"--budget leaves out what {everything} is to measure: give one of them")
    return Limit.parse(options.budget)


def asked_strategy(options: argparse.Namespace, usual: str | None = None) -> ChosenStrategy:
    """The strategy that the options mean together, `usual` (None: the default) where they mean none.

    Raises InputError where they contradict each other.
    """
    search, patience = options.search, options.patience
    # What the two short spellings mean, and what comes of a protocol that measures everything.
    short = {EXHAUSTIVE: options.exhaustive, f"{PATIENT}:{patience}": patience is not None}
    meant = [name for name, is_given in short.items() if is_given]
    if search == PATIENT and patience is not None:
        search = f"{PATIENT}:{patience}"
    asked = dict.fromkeys([*([search] if search else []), *meant])
    if len(asked) > 1:
        given = [f"--search {search}"] * bool(search) + ["--exhaustive"] * options.exhaustive
        given += [f"--patience {patience}"] * (patience is not None)
        raise InputError(f"{' and '.join(given)} contradict each other: give one of them")
    everything = options.protocol == "tune_gemm"
    chosen = chosen_strategy(next(iter(asked), PREDICTED if everything else usual))
    if everything and not chosen.whole:
        raise InputError(f"--search {chosen.said} leaves out what --protocol tune_gemm is to measure: give one of them")
    return chosen
