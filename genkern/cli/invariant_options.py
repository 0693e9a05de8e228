"""The options of --batch_invariant: winners with one order of sums."""

from __future__ import annotations

import argparse

from genkern.errors import InputError
from genkern.file_io import is_stream
from genkern.tuning.invariant.group import KINDS, LEAST, parse_weights

_OWN = ("--sums", "--m_weights")


def add_invariant(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
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
        help=f"with --batch_invariant: the order with the least total time, or library: that of PyTorch's "
        f"call for the largest M "
        f"(default: {LEAST}; at a tie the library's)",
    )
    group.add_argument(
        "--m_weights",
        type=_weights,
        metavar="M:W,...",
        help="with --batch_invariant: how often each M is called, as 1:4,64:1 (default: equally often)",
    )


def check_invariant(options: argparse.Namespace) -> None:
    """Raise InputError if options contradict each other."""
    if not options.batch_invariant:
        if idle := [name for name in _OWN if name in options.given]:
            raise InputError(f"{idle[0]} belongs to --batch_invariant: give that too")
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
        raise InputError("--batch_invariant reads the results that it has written: give a file as -o")


def _weights(text: str) -> dict[int, float]:
    try:
        return parse_weights(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--m_weights: ")) from None
