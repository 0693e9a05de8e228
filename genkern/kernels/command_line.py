"""The command-line option for files with your own kernel families."""

from __future__ import annotations

import argparse

from genkern.errors import InputError
from genkern.kernels.catalogue import add_file


def add_families(group: argparse._ArgumentGroup) -> None:
    """Add the option --family, which registers the family of a file as soon as the option is parsed."""
    group.add_argument(
        "--family",
        metavar="FILE",
        type=_family,
        action="append",
        default=[],
        help="a Python file with your kernel family in CuTe DSL, which --space may name; repeatable (default: none)",
    )


def _family(text: str) -> str:
    try:
        return add_file(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
