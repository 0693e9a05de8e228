"""What a strategy adds to a command line: which one it is, and how much it is to measure."""

from __future__ import annotations

import argparse

from genkern.arguments import number
from genkern.errors import InputError
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
    """The options --search, --exhaustive and --patience, of which `asked_strategy` is made."""
    group.add_argument(
        *("--search", "--strategy"),
        metavar="NAME|FILE.py",
        help="what is compiled and measured, in which order, and until when. predicted: everything, what a cost model "
        "predicts to be fast first (with :N: so many kernels); patience:N: the first four kernels of each form of a "
        "family, then in predicted order, until N in a row brought nothing faster (a run that is resumed counts anew); "
        "racing: some kernels of each form, then twice as many of those forms whose best is near the best, and so on; "
        "random: everything, in an order drawn from SEED; exhaustive: everything, also each GROUP_SIZE_M of a kernel "
        "that takes over 1.5 times the best, and copies: configs that compile to the same machine code. What is left "
        "out is predicted_out or identical. Or a file that has strategy(task), as genkern/search/strategy.py says "
        f"({', '.join(shown_names())}; default: {next(iter(STRATEGIES))})",
    )
    group.add_argument("--exhaustive", action="store_true", help="short for --search exhaustive")
    group.add_argument(
        "--patience", type=_POSITIVE, metavar="N", help="short for --search patience:N (default: as --search says)"
    )


def asked_strategy(options: argparse.Namespace) -> ChosenStrategy:
    """The strategy that the options mean together. Raises InputError where they contradict each other."""
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
    chosen = chosen_strategy(next(iter(asked), PREDICTED if everything else None))
    if everything and not chosen.whole:
        raise InputError(f"--search {chosen.said} leaves out what --protocol tune_gemm is to measure: give one of them")
    return chosen
