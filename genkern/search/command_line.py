"""What a strategy adds to a command line: which one it is, and how much it is to measure."""

from __future__ import annotations

import argparse

from genkern.arguments import number
from genkern.search.strategies import STRATEGIES

_POSITIVE = number("a whole number from 1 to 100000", 1, 100_000, integer=True)


def add_strategy(group: argparse._ArgumentGroup) -> None:
    """The options --exhaustive, --patience and --strategy, of which `chosen_strategy` and the budget are made."""
    group.add_argument(
        "--exhaustive",
        action="store_true",
        help="measure every config; without it, the other GROUP_SIZE_M of a kernel that takes over 1.5 times the best "
        "(predicted_out; on NVIDIA only), and all but one of the configs that compile to the same machine code "
        "(identical), are left out",
    )
    group.add_argument(
        "--patience",
        type=_POSITIVE,
        metavar="N",
        help="compile and measure a size's kernels, the first four of each form of a family and then the most "
        "promising first, until N in a row brought nothing faster; the rest is predicted_out; a run that is resumed "
        "counts anew (default: all)",
    )
    group.add_argument(
        "--strategy",
        metavar="NAME|FILE.py",
        help=f"what is compiled and measured, in which order, and until when: {', '.join(STRATEGIES)}, or a file that "
        "has strategy(task), as genkern/search/strategy.py says (default: patience with --patience, else predicted)",
    )
