"""The options of runs whose winners have one order of sums (--batch_invariant)."""

from __future__ import annotations

import argparse

from genkern.errors import InputError
from genkern.files import is_stream
from genkern.tuning.invariant.group import KINDS, LEAST, parse_weights

_OWN = ("--sums", "--m_weights")


def add_invariant(group: argparse._ArgumentGroup) -> None:
    """Add them."""
    group.add_argument(
        "--batch_invariant",
        action="store_true",
        help="give sizes that differ in M alone one order of sums: a row then has the same bits in every batch",
    )
    group.add_argument(
        "--sums",
        choices=KINDS,
        default=LEAST,
        metavar="ORDER",
        help=f"of --batch_invariant: least total time, or library, as PyTorch's own call for the largest M "
        f"(default: {LEAST}; at a tie the library's)",
    )
    group.add_argument(
        "--m_weights",
        type=_weights,
        metavar="M:W,...",
        help="of --batch_invariant: how often calls have which M, 1:4,64:1 (default: alike)",
    )


def check_invariant(options: argparse.Namespace) -> None:
    """Raise InputError for what does not go together."""
    if not options.batch_invariant:
        if idle := [name for name in _OWN if name in options.given]:
            raise InputError(f"{idle[0]} is about --batch_invariant: give that too")
        return
    others = {"--bucket": options.bucket, "--explain": options.explain, "--benchmark": options.benchmark}
    others |= {"--compare_wo_tuning": options.compare_wo_tuning}
    for name, given in others.items():
        if given:
            raise InputError(
                f"--batch_invariant tunes the sizes of a list together, and {name} does not: give one of them"
            )
    results = options.tuning_results_file
    if results is not None and is_stream(results):
        raise InputError("--batch_invariant goes on with what it has found: give a file as -o")


def _weights(text: str) -> dict[int, float]:
    try:
        return parse_weights(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--m_weights: ")) from None
