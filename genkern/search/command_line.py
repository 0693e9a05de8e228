"""Command line options of the search: its strategy, and how much it measures."""

from __future__ import annotations

import argparse

from genkern.errors import InputError
from genkern.search.limit import Limit
from genkern.search.strategies import (
    EXHAUSTIVE,
    PREDICTED,
    STRATEGIES,
    ChosenStrategy,
    chosen_strategy,
    shown_names,
)


def add_strategy(group: argparse._ArgumentGroup) -> None:
    """Add the options that `strategy_option` and `limit_option` read."""
    group.add_argument(
        *("--search", "--strategy"),
        metavar="NAME|FILE.py",
        help="what is compiled and measured, and in which order. guided: the most promising kernels by a model of "
        "times, corrected by the size's own times; zero: only the model's first choice; predicted: all kernels "
        "(or N), in the model's order; exhaustive: all configs, including those with equal machine code; cached: "
        "kernels that need no compile; spread: a sample of the whole space. "
        "Or a file with strategy(task) (genkern/search/strategy.py). "
        f"({', '.join(shown_names())}; default: {next(iter(STRATEGIES))}; without a GPU nothing is searched, and the "
        "model's first choice wins, unless --compile is given)",
    )
    group.add_argument("--exhaustive", action="store_true", help="short form of --search exhaustive")
    group.add_argument("--patience", metavar="N", help="refused: use --budget N instead (default: none)")
    group.add_argument(
        "--budget",
        metavar="SECONDSs|N",
        help="a hard limit of a size's search, after which the best kernel so far is timed again, checked and written. "
        "30s: seconds from its turn on a GPU, at least one kernel; 200: kernels (binaries) measured (default: none)",
    )


def limit_option(options: argparse.Namespace, strategy: ChosenStrategy) -> Limit:
    """Return the limit of a search from the options.

    Raises InputError if it is invalid, or contradicts the strategy or `--protocol tune_gemm`.
    """
    if options.budget is None:
        return Limit()
    everything = "--protocol tune_gemm" if options.protocol == "tune_gemm" else f"--search {strategy.name}"
    if strategy.every or options.protocol == "tune_gemm":
        raise InputError(f"--budget leaves out what {everything} is to measure: give one of them")
    return Limit.parse(options.budget)


def strategy_option(options: argparse.Namespace, usual: str | None = None) -> ChosenStrategy:
    """Return the strategy that the options name.

    If they name none, it is predicted with `--protocol tune_gemm`, else `usual` (None: the default strategy). Raises
    InputError if the options contradict each other.
    """
    if options.patience is not None:
        raise InputError(
            "--patience is no longer part of genkern: use --budget N to measure at most N kernels of a size"
        )
    search = options.search
    if options.exhaustive and search not in (None, EXHAUSTIVE):
        raise InputError(f"--search {search} and --exhaustive contradict each other: give one of them")
    everything = options.protocol == "tune_gemm"
    chosen = chosen_strategy(EXHAUSTIVE if options.exhaustive else search or (PREDICTED if everything else usual))
    if everything and not chosen.whole:
        raise InputError(f"--search {chosen.said} leaves out what --protocol tune_gemm is to measure: give one of them")
    return chosen
