"""What families of someone's own add to a command line: their files."""

from __future__ import annotations

import argparse

from genkern.errors import InputError
from genkern.kernels.catalogue import add_file


def add_families(group: argparse._ArgumentGroup) -> None:
    """The option --family, which makes the family of a file known when it is read."""
    group.add_argument(
        "--family",
        metavar="FILE",
        type=_family,
        action="append",
        default=[],
        help="a kernel family of your own in CuTe DSL, for --space to name; repeatable (default: none)",
    )


def _family(text: str) -> str:
    try:
        return add_file(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
